"""A training run in its own process, on a share of the processors, which ends cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_replicator.processes import output
from rl_replicator.processes.process_group import ProcessGroup

# `rl-replicator train` saves and ends within ten seconds of SIGINT on an idle machine.
_SECONDS_TO_END = 120.0
_POLL_SECONDS = 0.1
_THREADS = "TF_NUM_INTRAOP_THREADS"
# Variables that Ray sets for its own processes. Another Ray in a run would take them for its own.
_OF_RAY = ("RAY_", "TUNE_", "OMP_NUM_THREADS")


class RunProcess:
    """The process of a run. It cannot outlive the thread that starts it."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        processors: Sequence[int] = (),
        variables: Mapping[str, str] | None = None,
    ):
        """Starts the process.

        Args:
          command: the command and its arguments.
          log: file to which the output is appended; its directory is created.
          processors: indices of the processors that it may use; empty for all.
          variables: environment variables that are set if the user has not set them.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        defaults = {"PYTHONUNBUFFERED": "1", **(variables or {})}
        if processors:  # Otherwise TensorFlow starts threads for all processors of the machine.
            defaults[_THREADS] = str(max(1, len(processors) // 2))
        kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_RAY)}
        with log.open("ab") as log_file:
            self._group = ProcessGroup.start(command, {**defaults, **kept}, log_file)
        if processors:
            os.sched_setaffinity(self._group.pid, processors)

    def poll(self) -> int | None:
        """Returns the exit status, or the negative signal that killed it; None while it runs."""
        return self._group.poll()

    def interrupt(self) -> None:
        """Asks the process to save and end."""
        self._group.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Waits until the process has ended, and kills it if that takes too long.

        Returns:
          The result of `poll`.
        """
        deadline = time.monotonic() + _SECONDS_TO_END
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self._group.kill()
            time.sleep(_POLL_SECONDS)
        return code

    def reason(self) -> str:
        """Returns one line that describes how it ended: status and last line of the output."""
        how = output.describe_end(self.poll() or 0)
        lines: list[str] = []
        with contextlib.suppress(OSError):  # The log may have been deleted.
            lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip() if lines else 'no output'} ({self._log})"
