"""Population based training (Jaderberg et al. 2017, arXiv:1711.09846), kept in the study's file.

All trials train for an interval and pause. Then the worst quarter continues from copies of trials
of the best quarter, with changed settings. Decisions are written to the study's file before they
are carried out, so that a later process can continue after a kill at any time.

Ray Tune's PopulationBasedTraining is not used: its scheduler acts on the actors and checkpoints of
its own controller, whereas here a trial is a process with a run directory, which is paused by
SIGINT and continued by `train --run-dir`. It also needs pandas and pyarrow (docs/sweeps.md).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.sweeps import lineage
from rl_replicator.sweeps.lineage import Stage
from rl_replicator.sweeps.perturbation import perturbed
from rl_replicator.sweeps.study import Study
from rl_replicator.sweeps.trial import SweepTrial, TrialState

_LOG = logging.getLogger(__name__)

_SHARE = 0.25
_REACHED = "reached"
_TO_CONTINUE = (TrialState.RUNNING, TrialState.PAUSED)


class Population:
    """Trials that learn from each other. It implements `runner.TrialScheduler`."""

    when_cut = TrialState.PAUSED

    def __init__(self, study: Study, interval: int):
        """Reads what earlier processes have decided.

        Args:
          study: keeps the trials and the decisions.
          interval: steps from one comparison to the next.
        """
        self._study = study
        self._spaces = {one.option: one.space for one in study.parameters}
        self._interval = interval
        self._rounds: list[dict[str, Any]] = study.rounds()
        self._tables_at_start: dict[int, list[Any]] = {}

    @property
    def _boundary(self) -> int:
        """Steps after which the trials are compared next."""
        return self._interval * (len(self._rounds) + 1)

    def trials(self, count: int) -> list[SweepTrial]:
        """Returns all trials, and completes the copies that a killed process did not complete.

        A trial that has not ended fails if one of its runs was deleted after its first comparison,
        because the weights from which it would continue are gone.

        Args:
          count: number of trials; missing ones are created.
        """
        trials = self._study.trials()
        while len(trials) < count:
            trials.append(self._study.ask())
        for trial in trials:
            trial.lineage = (Stage(0, trial.number, None, dict(trial.values)),)
            reached = self._study.note_of(trial, _REACHED)
            is_there = reached and reached["round"] == len(self._rounds)
            if trial.state is TrialState.RUNNING and is_there:
                trial.state = TrialState.PAUSED
        for decided in self._rounds:
            self._take_over(trials, decided)
        for trial in trials:
            self._fail_if_deleted(trial)
        if self._rounds:
            self._copy(trials, self._rounds[-1])
        return trials

    def _fail_if_deleted(self, trial: SweepTrial) -> None:
        has_paused = self._study.note_of(trial, _REACHED) is not None
        if trial.state not in _TO_CONTINUE or not has_paused:
            return
        for path in map(trial.run_dir, trial.seeds):
            if not RunDirectory(path).exists:
                self._fail(trial, f"found no run in {path} any more")
                return

    def _fail(self, trial: SweepTrial, reason: str) -> None:
        trial.state, trial.reason = TrialState.FAILED, reason
        self._study.finish(trial, None)
        _LOG.warning("trial %d has failed: it %s", trial.number, trial.reason)

    def ask(self) -> SweepTrial:
        """Raises `AssertionError`: a population has all of its trials from the start."""
        raise AssertionError("a population does not grow")

    def begin(self, trial: SweepTrial) -> None:
        """Notes that the processes of a trial are about to start."""
        self._tables_at_start[trial.number] = _tables(trial)

    def report(self, trial: SweepTrial, values: Sequence[float]) -> bool:
        """Returns whether a running trial has been evaluated for the next comparison.

        Args:
          trial: the trial.
          values: ignored; its evaluations are read with their steps.
        """
        del values
        self._study.note_total_steps(trial)
        if trial.total_steps is not None and self._boundary >= trial.total_steps:
            return False
        # A killed run has rows beyond its checkpoint, which it removes when it writes a new row.
        before = self._tables_at_start[trial.number]
        if any(new == old for new, old in zip(_tables(trial), before, strict=True)):
            return False
        steps = trial.evaluated().steps
        return len(steps) > 0 and steps[-1] >= self._boundary

    def finish(self, trial: SweepTrial, value: float | None) -> None:
        """Records that a trial has paused or ended, as its `state` says.

        Args:
          trial: the trial.
          value: the value at its last evaluation; None if it is not done.
        """
        for seed in trial.seeds:
            if trial.run_dir(seed).is_dir():
                lineage.write(trial.run_dir(seed), trial.lineage)
        if trial.state is not TrialState.PAUSED:
            self._study.finish(trial, value)
            return
        evaluated = trial.evaluated()
        index = int(np.searchsorted(evaluated.steps, self._boundary))
        self._study.note(
            trial,
            _REACHED,
            {
                "round": len(self._rounds),
                "step": int(evaluated.steps[index]),
                "score": float(evaluated.means[index]),
            },
        )

    def advance(self, trials: Sequence[SweepTrial]) -> list[SweepTrial]:
        """Compares the paused trials, and copies good ones over bad ones.

        Args:
          trials: all trials, none of which is running.

        Returns:
          The trials to continue; none if all have ended.
        """
        paused = [trial for trial in trials if trial.state is TrialState.PAUSED]
        if not paused:
            return []
        reached = {one.number: self._study.note_of(one, _REACHED) for one in paused}
        # Trial numbers are strings, as keys in JSON are.
        decided: dict[str, Any] = {
            "scores": {str(number): [x["step"], x["score"]] for number, x in reached.items()},
            "copies": {},
        }
        # A copy of a trial that is complete would not train any further.
        if not any(self._is_complete(trial) for trial in trials):
            decided["copies"] = self._choose(paused, reached)
        self._study.add_round(decided)
        self._rounds.append(decided)
        self._take_over(trials, decided)
        self._copy(trials, decided)
        for trial in paused:
            trial.state = TrialState.RUNNING
        return paused

    def _is_complete(self, trial: SweepTrial) -> bool:
        """Returns whether a trial has taken all steps, perhaps before it was told to pause."""
        if trial.state is not TrialState.PAUSED:
            return trial.state is TrialState.DONE
        return trial.has_all_steps()

    def _choose(
        self, paused: Sequence[SweepTrial], reached: Mapping[int, Any]
    ) -> dict[str, dict[str, Any]]:
        """Returns which trials are replaced by which, and with which settings."""
        score = paused[0].score()
        assert score is not None
        sign = 1.0 if score.is_highest_best else -1.0

        def value(trial: SweepTrial) -> float:
            figure = sign * reached[trial.number]["score"]
            return figure if math.isfinite(figure) else -math.inf

        order = sorted(paused, key=value, reverse=True)
        count = min(math.ceil(len(order) * _SHARE), len(order) // 2)
        best = [trial for trial in order[:count] if _is_saved(trial)]
        copies = {}
        for loser in order[len(order) - count :]:
            rng = np.random.default_rng([len(self._rounds), loser.number])
            if not best:
                break
            winner = best[rng.integers(len(best))]
            if not value(winner) > value(loser):
                continue
            values = {
                option: perturbed(self._spaces[option], written, rng)
                for option, written in winner.values.items()
            }
            step = reached[winner.number]["step"]
            copies[str(loser.number)] = {"source": winner.number, "step": step, "values": values}
        return copies

    def _take_over(self, trials: Sequence[SweepTrial], decided: Mapping[str, Any]) -> None:
        """Sets the lineage and the settings of the trials that become copies."""
        by_number = {trial.number: trial for trial in trials}
        for number, copy in decided["copies"].items():
            trial, source = by_number[int(number)], by_number[copy["source"]]
            stage = Stage(copy["step"], trial.number, source.number, copy["values"])
            trial.lineage = (*source.lineage, stage)
            trial.values = stage.values

    def _copy(self, trials: Sequence[SweepTrial], decided: Mapping[str, Any]) -> None:
        """Copies the runs of trials that have not ended, unless they were copied already.

        A trial whose source was deleted before it was copied keeps its runs and fails, because it
        has the settings of the copy, but not the weights.
        """
        by_number = {trial.number: trial for trial in trials}
        for number, copy in decided["copies"].items():
            trial, source = by_number[int(number)], by_number[copy["source"]]
            if trial.state not in _TO_CONTINUE:
                continue  # It has ended since then, and its run may have been deleted.
            seeds = [
                seed
                for seed in trial.seeds
                if not lineage.is_written(trial.run_dir(seed), trial.lineage)
            ]
            if seeds and not _is_saved(source):
                self._fail(trial, f"found no checkpoint of trial {source.number} to copy any more")
                continue
            for seed in seeds:
                lineage.copy_run(source.run_dir(seed), trial.run_dir(seed), trial.lineage)


def _tables(trial: SweepTrial) -> list[Any]:
    """Returns a value for each seed that changes when its run writes evaluations."""
    score = trial.score()
    found: list[Any] = []
    for seed in trial.seeds:
        name = f"{score.group}.csv" if score else ""
        try:
            stat = (trial.run_dir(seed) / "metrics" / name).stat()
            found.append((stat.st_ino, stat.st_mtime_ns) if score else None)
        except OSError:
            found.append(None)
    return found


def _is_saved(trial: SweepTrial) -> bool:
    """Returns whether all runs of a trial have a checkpoint."""
    runs = [RunDirectory(trial.run_dir(seed)) for seed in trial.seeds]
    return all(not Checkpointer(run.checkpoints).is_empty for run in runs)
