"""An experiment: what its trials run, and what is told of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from rl_replicator.experiments.space import Search
from rl_replicator.experiments.trial import Trial, TrialRun, TrialState


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """What trials run, and where. It is sent to other processes.

    Attributes:
      kind: what its directory holds: "sweep" or "suite".
      free: settings of `identity` that may change when it is continued.
      run_dir: directory of the experiment, which all machines share.
      parallel: number of trials at a time.
      address: HOST:PORT of a Ray cluster; None for this machine.
      module: the module that implements `rl-replicator`.
      search: how to find the values of new trials; None for no new trials.
      trials: number of trials of a search.
    """

    kind: ClassVar[str]
    free: ClassVar[tuple[str, ...]]

    run_dir: Path
    parallel: int
    module: str
    address: str | None = None
    search: Search | None = None
    trials: int = 0

    @property
    def identity(self) -> dict[str, Any]:
        """Settings that must not change when it is continued, except `free`; plain data."""
        raise NotImplementedError

    @property
    def settings(self) -> dict[str, Any]:
        """What else its `config.json` records."""
        raise NotImplementedError

    def runs(self, name: str, values: Mapping[str, str]) -> Sequence[TrialRun]:
        """Returns the runs of a trial, which train side by side.

        Args:
          name: name of the trial.
          values: its values, as in `Trial`.
        """
        raise NotImplementedError

    def written(self, values: Mapping[str, object]) -> dict[str, str]:
        """Returns the values of a trial, perhaps as numbers, as `Trial` has them."""
        return {option: str(value) for option, value in values.items()}

    def begun(self) -> list[Trial]:
        """Returns the trials with which it starts, those that have ended included."""
        raise NotImplementedError

    def text(self, trials: Sequence[Trial]) -> str:
        """Returns the table of all trials."""
        raise NotImplementedError

    def noted(self, trials: Sequence[Trial], one: Trial) -> str:
        """Writes what is known, once a trial has changed; returns the line that says so, or ""."""
        raise NotImplementedError

    def conclude(self, trials: Sequence[Trial], is_stopped: bool) -> int:
        """Writes and prints the results; returns the exit status, unless a signal has ended it."""
        raise NotImplementedError


def count(trials: Sequence[Trial], *states: TrialState) -> int:
    """Returns how many trials are in one of some states."""
    return sum(one.state in states for one in trials)
