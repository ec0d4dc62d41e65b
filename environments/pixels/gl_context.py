"""OpenGL contexts that any thread may use, one thread at a time.

A context belongs to the thread in which it is current, and OpenGL calls without a current context
are silently ignored. Here a context is current only while one frame is drawn. With EGL, the context
that was current before is then restored, for instance one of dm_control's, which assumes that no
other code switches contexts.

Finalizers make no OpenGL call: the garbage collector runs them in any thread at any allocation,
possibly between two OpenGL calls of another context. A context that becomes unreachable is queued,
and destroyed before the next one is opened, made current or closed.

When the interpreter exits, each context is destroyed as soon as no thread draws with it, and none
can be used afterwards. Otherwise a daemon thread could return from MuJoCo to a finalized
interpreter: Python ends such a thread by unwinding its stack, and the C++ frames on it crash the
process.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib
import threading
from collections.abc import Iterator
from typing import Any

from environments.pixels import rendering


class Context:
    """One OpenGL context and the objects that live in it."""

    def __init__(self, width: int, height: int):
        """Opens a context.

        Args:
          width: largest width of a frame, in pixels.
          height: largest height of a frame, in pixels.

        Raises:
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
          RuntimeError: if the interpreter is exiting.
        """
        self._native: _NativeContext | None = None  # For `__del__`, in case the next line raises.
        self._native = _PROCESS.open(width, height)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current in this thread, for the length of a `with` block.

        Blocks while another thread uses this context.

        Raises:
          RuntimeError: if the context has been closed, by `close` or by the interpreter's exit.
        """
        assert self._native is not None
        _PROCESS.destroy_unreachable()
        with self._native.current():
            yield

    def keep(self, content: Any) -> None:
        """Registers `content`, to call its method `free` when the context is destroyed."""
        assert self._native is not None
        self._native.contents.append(content)

    def close(self) -> None:
        """Destroys the context and its contents, from any thread. Later calls do nothing."""
        assert self._native is not None
        _PROCESS.destroy_unreachable()
        _PROCESS.destroy(self._native)

    def __del__(self) -> None:
        if self._native is not None:
            _PROCESS.queue_unreachable(self._native)


def count() -> int:
    """Returns the number of contexts in this process that have not been destroyed."""
    return len(_PROCESS.contexts)


@contextlib.contextmanager
def previous_restored(kind: str) -> Iterator[None]:
    """Restores this thread's current context after a `with` block.

    Only for EGL: with OSMesa and GLFW, no context is current afterwards.

    Args:
      kind: the kind of OpenGL that is enabled, `Renderer.kind`.
    """
    library = importlib.import_module(f"mujoco.{kind}")
    if kind == "egl":
        egl = library.EGL
        before = egl.eglGetCurrentContext()
        try:
            yield
        finally:
            display, none = library.EGL_DISPLAY, egl.EGL_NO_SURFACE
            egl.eglMakeCurrent(display, none, none, before or egl.EGL_NO_CONTEXT)
        return
    try:
        yield
    finally:
        if kind == "osmesa":  # dm_control uses OSMesa in its own threads.
            library.osmesa.OSMesaMakeCurrent(None, None, library.GL.GL_FLOAT, 0, 0)
        else:
            library.glfw.make_context_current(None)


class _NativeContext:
    """An OpenGL context of the driver. Only `destroy` destroys it.

    Attributes:
      contents: objects with a method `free` that must run with this context current.
    """

    def __init__(self, width: int, height: int):
        self._kind = rendering.enable().kind
        self._library = importlib.import_module(f"mujoco.{self._kind}")
        self._lock = threading.Lock()
        self.contents: list[Any] = []
        with previous_restored(self._kind):
            self._context = self._library.GLContext(width, height)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        with self._lock, previous_restored(self._kind):
            if self._context is None:
                raise RuntimeError("expected an open OpenGL context, got one that has been closed")
            self._context.make_current()
            yield

    def destroy(self) -> None:
        """Destroys it, once no thread draws with it. Later calls do nothing."""
        with self._lock, previous_restored(self._kind):
            if self._context is None:
                return
            # If this raises, the contents are kept: their own destructors call OpenGL as well.
            self._context.make_current()
            while self.contents:
                self.contents.pop().free()
            self._context.free()
            self._context = None


class _ProcessContexts:
    """All contexts of this process, which are opened and destroyed one at a time.

    Attributes:
      contexts: those not yet destroyed; strong references keep their own finalizers from running.
    """

    def __init__(self) -> None:
        self.contexts: set[_NativeContext] = set()
        # Finalizers append to it without a lock: the interrupted thread might already hold it.
        self._unreachable: collections.deque[_NativeContext] = collections.deque()
        self._lock = threading.Lock()
        self._has_exit_hook = self._is_exiting = False

    def open(self, width: int, height: int) -> _NativeContext:
        self.destroy_unreachable()
        with self._lock:
            if self._is_exiting:
                raise RuntimeError("expected no new OpenGL context while Python exits, got one")
            native = _NativeContext(width, height)
            self.contexts.add(native)
            if not self._has_exit_hook:
                # Hooks run in reverse order: this one precedes the hook that closes EGL's display.
                atexit.register(self._exit)
                self._has_exit_hook = True
        return native

    def queue_unreachable(self, native: _NativeContext) -> None:
        self._unreachable.append(native)

    def destroy_unreachable(self) -> None:
        while self._unreachable:
            try:
                native = self._unreachable.popleft()
            except IndexError:  # Another thread took the last one.
                return
            self.destroy(native)

    def destroy(self, native: _NativeContext) -> None:
        with self._lock:
            native.destroy()
            self.contexts.discard(native)

    def _exit(self) -> None:
        with self._lock:
            self._is_exiting = True
        for native in list(self.contexts):
            self.destroy(native)


_PROCESS = _ProcessContexts()
