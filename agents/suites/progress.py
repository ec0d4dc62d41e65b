"""The state of the runs of a suite, read from their directories."""

import dataclasses
import enum
from pathlib import Path

from agents.suites import results
from agents.suites.results import ResultRow
from agents.suites.tasks import SuiteRun
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory


class State(enum.Enum):
    """The state of a run."""

    WAITING = "waiting"
    """Not begun, or stopped before its end."""
    RUNNING = "running"
    DONE = "done"
    """All steps are taken, and the last evaluation is written."""
    FAILED = "failed"
    """Its process ended with an error."""


@dataclasses.dataclass
class RunStatus:
    """A run of the suite, and its state while the suite is running.

    Attributes:
      run: its task and seed.
      path: its directory.
      state: its state.
      reason: why it failed, one line.
    """

    run: SuiteRun
    path: Path
    state: State = State.WAITING
    reason: str = ""

    def rows(self) -> list[ResultRow]:
        """Returns its evaluations so far."""
        return results.read_run(self.path) if RunDirectory(self.path).exists else []

    def environment_steps(self) -> int:
        """Returns the environment steps of its newest training episode or evaluation."""
        tables = [read_metrics(self.path, group) for group in ("actor", "evaluator")]
        steps = [table["environment_steps"] for table in tables if table]
        return max((int(column[-1]) for column in steps if len(column)), default=0)

    def is_complete(self, steps: int) -> bool:
        """Returns whether it has taken `steps` environment steps and was evaluated after them."""
        rows = self.rows()
        return bool(rows) and rows[-1].environment_steps >= steps
