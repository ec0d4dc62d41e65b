"""A training run in its own process, on a share of the processors, which ends cleanly."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_replicator.processes import output
from rl_replicator.processes.process_group import ProcessGroup

# `rl-replicator train` saves and ends within ten seconds of SIGINT on an idle machine.
SECONDS_TO_END = 120.0
_POLL_SECONDS = 0.2
_THREADS = "TF_NUM_INTRAOP_THREADS"


@dataclasses.dataclass(frozen=True)
class Slot:
    """A share of the processors, on which processes run.

    Attributes:
      processors: indices of the processors that the processes may use; empty for all.
    """

    processors: tuple[int, ...] = ()

    def environment(self) -> dict[str, str]:
        """Returns the environment variables to add for a process.

        Without them, TensorFlow would start threads for all processors of the machine.
        """
        if not self.processors or _THREADS in os.environ:
            return {}
        return {_THREADS: str(max(1, len(self.processors) // 2))}


def slots(parallel: int) -> list[Slot]:
    """Divides the processors of this process among `parallel` slots.

    Args:
      parallel: number of slots. A single slot gets all processors. If there are more slots than
        processors, several slots share one.
    """
    if parallel == 1:
        return [Slot()]
    processors = sorted(os.sched_getaffinity(0))
    if parallel >= len(processors):
        return [Slot((processors[index % len(processors)],)) for index in range(parallel)]
    return [Slot(tuple(processors[index::parallel])) for index in range(parallel)]


def end_all(
    processes: Sequence[RunProcess],
    is_urgent: Callable[[], bool],
    on_look: Callable[[], None] = lambda: None,
) -> None:
    """Asks processes to save and end, and waits for them; kills those that take too long.

    Args:
      processes: the processes.
      is_urgent: returns whether to kill them immediately.
      on_look: called repeatedly during the wait.
    """
    for process in processes:
        process.interrupt()
    deadline = time.monotonic() + SECONDS_TO_END
    while any(process.poll() is None for process in processes):
        if is_urgent() or time.monotonic() > deadline:
            for process in processes:
                process.kill()
        on_look()
        time.sleep(_POLL_SECONDS)


class RunProcess:
    """The process of a run. It cannot outlive this process.

    It has its own process group, so that Ctrl-C reaches it only once, through `interrupt`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        slot: Slot,
        variables: Mapping[str, str] | None = None,
    ):
        """Starts the process.

        Args:
          command: the command and its arguments.
          log: file to which the output is appended; its directory is created.
          slot: the processors that it may use.
          variables: environment variables that are set if the user has not set them.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        defaults = {"PYTHONUNBUFFERED": "1", **(variables or {})}
        with log.open("ab") as log_file:
            environment = {**defaults, **os.environ, **slot.environment()}
            self._group = ProcessGroup.start(command, environment, log_file)
        if slot.processors:
            os.sched_setaffinity(self._group.pid, slot.processors)

    def poll(self) -> int | None:
        """Returns the exit status, or the negative signal that killed it; None while it runs."""
        return self._group.poll()

    def interrupt(self) -> None:
        """Asks the process to save and end."""
        self._group.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kills the process and those that it has started."""
        self._group.kill()

    def reason(self) -> str:
        """Returns one line that describes how it ended: status and last line of the output."""
        how = output.describe_end(self.poll() or 0)
        lines: list[str] = []
        with contextlib.suppress(OSError):  # The log may have been deleted.
            lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip() if lines else 'no output'} ({self._log})"
