"""OpenGL contexts that any thread may use, one thread at a time.

A context belongs to the thread in which it is current, and OpenGL calls without a current context
are silently ignored. Here a context is current only while one frame is drawn. With EGL, the context
that was current before is then restored, for instance one of a viewer of Gymnasium.

Finalizers make no OpenGL call: the garbage collector runs them in any thread at any allocation,
possibly between two OpenGL calls of another context. A context whose owner has become unreachable
is queued, and destroyed before the next one is opened or made current.

When the interpreter exits, each context is destroyed as soon as no thread draws with it, and none
can be used afterwards. Otherwise a daemon thread could return from MuJoCo to a finalized
interpreter: Python ends such a thread by unwinding its stack, and the C++ frames on it crash the
process.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from environments.pixels import rendering

# Contexts are opened and destroyed one at a time.
_LOCK = threading.Lock()
# Those not yet destroyed. Strong references keep their own finalizers from running.
_open: set[Context] = set()
# Finalizers append to it without a lock: the interrupted thread might already hold it.
_unreachable: collections.deque[Context] = collections.deque()
_is_exiting = _has_exit_hook = False


class Context:
    """One OpenGL context and the objects that live in it. Only `close` destroys it.

    Attributes:
      contents: objects with a method `free` that must run with this context current.
    """

    def __init__(self, owner: Any, width: int, height: int):
        """Opens a context.

        Args:
          owner: the object that uses the context, which is destroyed some time after it.
          width: largest width of a frame, in pixels.
          height: largest height of a frame, in pixels.

        Raises:
          RenderingUnavailableError: if OpenGL is unavailable on this machine.
          RuntimeError: if the interpreter is exiting.
        """
        global _has_exit_hook
        _close_unreachable()
        with _LOCK:
            if _is_exiting:
                raise RuntimeError("expected no new OpenGL context while Python exits, got one")
            self._kind = rendering.enable().kind
            self._lock = threading.Lock()
            self.contents: list[Any] = []
            with rendering.previous_restored(self._kind) as library:
                self._native = library.GLContext(width, height)
            _open.add(self)
            if not _has_exit_hook:
                # Hooks run in reverse order: this one precedes the hook that closes EGL's display.
                atexit.register(_exit)
                _has_exit_hook = True
        weakref.finalize(owner, _unreachable.append, self).atexit = False

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Makes the context current in this thread, for the length of a `with` block.

        Blocks while another thread uses this context.

        Raises:
          RuntimeError: if the context has been closed, by `close` or by the interpreter's exit.
        """
        _close_unreachable()
        with self._lock, rendering.previous_restored(self._kind):
            if self._native is None:
                raise RuntimeError("expected an open OpenGL context, got one that has been closed")
            self._native.make_current()
            yield

    def close(self) -> None:
        """Destroys the context and its contents, from any thread, once no thread draws with it.

        Later calls do nothing.
        """
        with _LOCK, self._lock, rendering.previous_restored(self._kind):
            if self._native is None:
                return
            # If this raises, the contents are kept: their own destructors call OpenGL as well.
            self._native.make_current()
            while self.contents:
                self.contents.pop().free()
            self._native.free()
            self._native = None
            _open.discard(self)


def count() -> int:
    """Returns the number of contexts in this process that have not been destroyed."""
    return len(_open)


def _close_unreachable() -> None:
    while _unreachable:
        with contextlib.suppress(IndexError):  # Another thread took the last one.
            _unreachable.popleft().close()


def _exit() -> None:
    global _is_exiting
    with _LOCK:
        _is_exiting = True
    for context in list(_open):
        context.close()
