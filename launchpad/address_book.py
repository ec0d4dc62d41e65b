"""The addresses of a program's servers, as far as they are known."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Mapping


class AddressBook:
    """Addresses published so far, by address key. Thread-safe.

    A stop raises SystemExit in threads of nodes, wherever they are. Python code that acquires a
    lock, such as that of `threading.Condition`, may then leave it acquired, and the program would
    never end. So threads wait on a `queue.SimpleQueue`, and the only lock is a plain one.
    """

    def __init__(self, entries: Mapping[str, str] | None = None):
        self._entries: dict[str, str] = dict(entries or {})
        self._lock = threading.Lock()
        self._watchers: dict[str, list[Callable[[str], bool]]] = {}

    def publish(self, key: str, address: str) -> None:
        """Records the current address of `key`, and calls its watchers."""
        with self._lock:
            self._entries[key] = address
            watchers = self._watchers.pop(key, [])
        lasting = [watcher for watcher in watchers if watcher(address)]
        with self._lock:
            self._watchers.setdefault(key, []).extend(lasting)

    def watch(self, key: str, watcher: Callable[[str], bool]) -> None:
        """Calls `watcher(address)` whenever `key` is published, until it returns False."""
        with self._lock:
            self._watchers.setdefault(key, []).append(watcher)

    def forget(self, key: str) -> None:
        """Removes the address of `key`, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def get(self, key: str) -> str | None:
        """Returns the address of `key`, or None if it is not published."""
        with self._lock:
            return self._entries.get(key)

    def snapshot(self) -> dict[str, str]:
        """Returns a copy of all entries."""
        with self._lock:
            return dict(self._entries)

    def wait_for(self, key: str, timeout: float) -> str | None:
        """Returns the address, or None if it is not published within `timeout` seconds."""
        published: queue.SimpleQueue[str] = queue.SimpleQueue()

        def watcher(address: str) -> bool:
            published.put(address)
            return False

        with self._lock:
            if key in self._entries:
                return self._entries[key]
            self._watchers.setdefault(key, []).append(watcher)
        with contextlib.suppress(queue.Empty):
            published.get(timeout=max(0.0, timeout))
        with self._lock:
            if watcher in self._watchers.get(key, ()):
                self._watchers[key].remove(watcher)
            return self._entries.get(key)
