"""Helpers for scripts that exit gracefully after a signal (upstream's module of the same name)."""

from __future__ import annotations

import atexit
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from launchpad.engines import manager


def exit_gracefully_on_sigint() -> None:
    """Makes Ctrl-C end the process with status 0, after its programs and its exit handlers.

    Further Ctrl-Cs are ignored.
    """
    signal.signal(signal.SIGINT, _exit)


def exit_gracefully_on_sigquit() -> None:
    """Makes SIGQUIT end the process with status 0, after its programs and its exit handlers."""
    signal.signal(signal.SIGQUIT, _exit)


def register_exit_handler(handler: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
    """Calls `handler(*args, **kwargs)` when the process ends; returns the handler."""
    return atexit.register(handler, *args, **kwargs)


def register_exit_handler_and_exit_gracefully_on_sigint(
    handler: Callable[..., None], *args: Any, **kwargs: Any
) -> Any:
    """Calls both functions; returns the handler."""
    exit_gracefully_on_sigint()
    return register_exit_handler(handler, *args, **kwargs)


def _exit(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT:  # A second Ctrl-C must not interrupt the exit handlers.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(f"{signal.Signals(number).name} received, exiting", flush=True)
    manager.stop_all()  # At exit, the script waits for them.
    sys.exit(0)
