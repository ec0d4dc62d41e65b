"""OpenGL contexts that any thread may use, one thread at a time.

An OpenGL context belongs to the thread that made it current, until that thread lets go of it, and
drawing without a current context fails in silence. So a context here is current for the length of
one picture only; afterwards the thread has back whatever context it had before, for instance one of
dm_control's, which takes for granted that nobody else switches.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from environments.pixels import rendering

_LIVE: weakref.WeakSet[Context] = weakref.WeakSet()
_EXIT_HOOK = threading.Lock()  # Taken by the first context, for good.


class Context:
    """One OpenGL context, and what lives in it."""

    def __init__(self, width: int, height: int):
        """Makes a context for pictures of at most `width` x `height` pixels.

        Raises:
          RenderingUnavailableError: if no OpenGL works here.
        """
        self._context: Any = None  # For `__del__`, should the next lines raise.
        self._contents: list[Any] = []
        self._lock = threading.RLock()
        self._kind = rendering.enable().kind
        self._library = importlib.import_module(f"mujoco.{self._kind}")
        with self._thread_as_found():
            self._context = self._library.GLContext(width, height)
        _LIVE.add(self)
        if _EXIT_HOOK.acquire(blocking=False):
            # Hooks run backwards: this one precedes the hook by which EGL shuts its display.
            atexit.register(_free_all)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within this block OpenGL calls of this thread go to this context."""
        with self._lock, self._thread_as_found():
            if self._context is None:
                raise RuntimeError("expected an open OpenGL context, got one that has been closed")
            self._context.make_current()
            yield

    @contextlib.contextmanager
    def _thread_as_found(self) -> Iterator[None]:
        if self._kind == "egl":
            egl = self._library.EGL
            before = egl.eglGetCurrentContext()
            try:
                yield
            finally:
                display, none = self._library.EGL_DISPLAY, egl.EGL_NO_SURFACE
                egl.eglMakeCurrent(display, none, none, before or egl.EGL_NO_CONTEXT)
            return
        try:
            yield
        finally:
            if self._kind == "osmesa":  # dm_control draws with OSMesa in threads of its own.
                self._library.osmesa.OSMesaMakeCurrent(None, None, self._library.GL.GL_FLOAT, 0, 0)
            else:
                self._library.glfw.make_context_current(None)

    def keep(self, content: Any) -> None:
        """Frees `content`, by its method `free`, together with this context."""
        self._contents.append(content)

    def free(self) -> None:
        """Frees the context and its contents, from any thread. Later calls do nothing."""
        with self._lock:
            if self._context is None:
                return
            with self.current():
                while self._contents:
                    self._contents.pop().free()
            with self._thread_as_found():
                self._context.free()
            self._context = None

    def __del__(self) -> None:
        self.free()


def _free_all() -> None:
    for context in list(_LIVE):
        context.free()
