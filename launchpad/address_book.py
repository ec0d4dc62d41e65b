"""Where the servers of a program are, as far as it is known."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping


class AddressBook:
    """Addresses published so far, by address key. Thread-safe."""

    def __init__(self, entries: Mapping[str, str] | None = None):
        self._entries: dict[str, str] = dict(entries or {})
        self._changed = threading.Condition()
        self._watchers: dict[str, list[Callable[[str], bool]]] = {}

    def publish(self, key: str, address: str) -> None:
        """Records where `key` is now; wakes those who wait for it and calls its watchers."""
        with self._changed:
            self._entries[key] = address
            self._changed.notify_all()
            watchers = self._watchers.pop(key, [])
        lasting = [watcher for watcher in watchers if watcher(address)]
        with self._changed:
            self._watchers.setdefault(key, []).extend(lasting)

    def watch(self, key: str, watcher: Callable[[str], bool]) -> None:
        """Calls `watcher(address)` whenever `key` is published, until it returns False."""
        with self._changed:
            self._watchers.setdefault(key, []).append(watcher)

    def forget(self, key: str) -> None:
        """Removes the address of `key`, if there is one."""
        with self._changed:
            self._entries.pop(key, None)

    def get(self, key: str) -> str | None:
        """Returns the address of `key`, or None if it is not published."""
        with self._changed:
            return self._entries.get(key)

    def snapshot(self) -> dict[str, str]:
        """Returns a copy of all entries."""
        with self._changed:
            return dict(self._entries)

    def wait_for(self, key: str, timeout: float) -> str | None:
        """Returns the address, or None if it is not published within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: key in self._entries, timeout)
            return self._entries.get(key)
