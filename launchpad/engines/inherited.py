"""Process attributes that the kernel passes on to child processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import resource
from collections.abc import Mapping

_RESOURCES = sorted(
    {getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")}
)


@dataclasses.dataclass(frozen=True)
class Inherited:
    """What a process inherits besides its environment and its directory.

    A forked node inherits it from the fork server, without what the launcher has changed since.

    Attributes:
      umask: Permissions that are withheld from new files.
      processors: Numbers of the CPUs that the process may use.
      limits: Soft and hard limit of each resource, by its number.
    """

    umask: int
    processors: frozenset[int]
    limits: Mapping[int, tuple[int, int]]

    @classmethod
    def of_this_process(cls) -> Inherited:
        """Returns what a process started by this thread now would inherit."""
        # `os.umask` can't read the mask without changing it, for all threads.
        status = pathlib.Path("/proc/self/status").read_text()
        found = re.search(r"^Umask:\s*([0-7]+)$", status, re.MULTILINE)
        assert found is not None
        return cls(
            int(found[1], 8),
            frozenset(os.sched_getaffinity(0)),
            {number: resource.getrlimit(number) for number in _RESOURCES},
        )

    def apply(self) -> None:
        """Applies it to this process, which must have no other threads, as far as permitted."""
        os.umask(self.umask)
        with contextlib.suppress(OSError):  # They are no longer available.
            os.sched_setaffinity(0, self.processors)
        for number, limits in self.limits.items():
            if resource.getrlimit(number) != limits:
                with contextlib.suppress(OSError, ValueError):
                    resource.setrlimit(number, limits)
