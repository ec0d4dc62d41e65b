"""The search itself, with Optuna: which values to try, and which trials to stop early."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.errors import UsageError
from rl_replicator.sweeps.search import Choice, Parameter, Range, written
from rl_replicator.sweeps.trial import SweepTrial, TrialState

_STUDY = "sweep"
_IS_STOPPED = "is_stopped"
_HAS_FAILED = "has_failed"
_TOTAL_STEPS = "total_steps"
_ROUND = "round-"
# The share of best trials whose values are compared with those of all trials.
_BEST_SHARE = 0.25
_FEWEST_FOR_IMPORTANCE = 4


@dataclasses.dataclass(frozen=True)
class SearchPlan:
    """How to search.

    Attributes:
      parameters: what is searched.
      sampler: "tpe" or "random".
      scheduler: "asha", which stops trials early; "fifo", which stops none; or "pbt", which lets
        trials copy each other.
      grace: number of the first evaluation after which a trial may be stopped.
      reduction: one of this many trials is continued at each rung.
      interval: steps from one comparison of pbt to the next; None for the others.
    """

    parameters: tuple[Parameter, ...]
    sampler: str
    scheduler: str
    grace: int
    reduction: int
    interval: int | None = None


def _optuna() -> Any:
    """Imports Optuna.

    Raises:
      UsageError: if it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise UsageError(
            "expected Optuna, which searches, found none; install it: pip install "
            "'rl-replicator[sweep]'"
        ) from None
    optuna.logging.set_verbosity(logging.WARNING)
    return optuna


class _Lock:
    """A lock for Optuna's journal in a folder that no other process uses.

    Optuna's own locks are files, which a killed process leaves behind. The next process then waits
    for half a minute, or forever if the path is relative.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self) -> bool:
        return self._lock.acquire()

    def release(self) -> None:
        self._lock.release()


def _cut_incomplete_line(path: Path) -> None:
    """Removes a line that a killed process left incomplete: the next one would be joined to it."""
    if path.exists():
        text = path.read_bytes()
        if not text.endswith(b"\n"):
            os.truncate(path, text.rfind(b"\n") + 1)


class Study:
    """The trials of a sweep, kept in a file, so that a later process can continue.

    Higher values are better here: the caller negates a figure whose lowest value is best.
    """

    when_cut = TrialState.STOPPED

    def __init__(self, path: Path, plan: SearchPlan, seeds: tuple[int | None, ...]):
        """Opens the file, or creates it.

        Args:
          path: the path of the file; the directories of the trials are beside it. No other process
            uses it.
          plan: how to search.
          seeds: the seeds of the runs of a trial.

        Raises:
          UsageError: if Optuna is not installed.
        """
        self._optuna = _optuna()
        self._plan, self._seeds, self._folder = plan, seeds, path.parent
        journal = self._optuna.storages.journal
        _cut_incomplete_line(path)
        with warnings.catch_warnings():  # Optuna warns about its experimental features.
            warnings.simplefilter("ignore")
            self._study = self._optuna.create_study(
                storage=journal.JournalStorage(journal.JournalFileBackend(str(path), _Lock())),
                study_name=_STUDY,
                load_if_exists=True,
                direction="maximize",
                pruner=self._pruner(),
            )
            self._study.sampler = self._sampler(len(self._study.trials))
        self._distributions = {one.option: self._distribution(one.space) for one in plan.parameters}
        self._live: dict[int, Any] = {}
        self._fail_half_drawn()

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        if self._plan.scheduler != "asha":
            return pruners.NopPruner()
        # The asynchronous rule of Li et al. 2020, "A System for Massively Parallel Hyperparameter
        # Tuning" (arXiv:1810.05934).
        return pruners.SuccessiveHalvingPruner(
            min_resource=self._plan.grace, reduction_factor=self._plan.reduction
        )

    def _sampler(self, seed: int) -> Any:
        # The seed is the number of trials: a continued sweep must not repeat its first draws.
        samplers = self._optuna.samplers
        # A population begins before any trial has a result to learn from.
        if self._plan.sampler == "random" or self._plan.scheduler == "pbt":
            return samplers.RandomSampler(seed=seed)
        return samplers.TPESampler(seed=seed, constant_liar=True)

    def _distribution(self, space: Choice | Range) -> Any:
        distributions = self._optuna.distributions
        if isinstance(space, Choice):
            return distributions.CategoricalDistribution(space.values)
        if space.is_whole:
            return distributions.IntDistribution(int(space.low), int(space.high), log=space.is_log)
        return distributions.FloatDistribution(
            space.low, space.high, log=space.is_log, step=space.step
        )

    def _fail_half_drawn(self) -> None:
        """Fails the trials for which a killed process has not drawn all values."""
        kinds = self._optuna.trial.TrialState
        for one in self._study.trials:
            if one.state is kinds.RUNNING and not self._is_drawn(one):
                self._study.tell(one.number, state=kinds.FAIL)

    def _is_drawn(self, one: Any) -> bool:
        return all(option in one.params for option in self._distributions)

    @property
    def parameters(self) -> Sequence[Parameter]:
        """What is searched."""
        return self._plan.parameters

    def trials(self) -> list[SweepTrial]:
        """Returns all trials that have begun; those that were interrupted are `RUNNING`."""
        kinds = self._optuna.trial.TrialState
        states = {
            kinds.COMPLETE: TrialState.DONE,
            kinds.PRUNED: TrialState.STOPPED,
            kinds.RUNNING: TrialState.RUNNING,
        }
        return [
            dataclasses.replace(
                self._trial(one),
                state=TrialState.FAILED if one.user_attrs.get(_HAS_FAILED) else states[one.state],
            )
            for one in self._study.trials
            if one.state in states and self._is_drawn(one)
        ]

    def retry(self) -> None:
        """Makes the trials that have failed `RUNNING` again."""
        for trial in self.trials():
            if trial.state is TrialState.FAILED:
                self.note(trial, _HAS_FAILED, False)

    def _trial(self, one: Any) -> SweepTrial:
        values = {
            parameter.option: written(parameter.space, one.params[parameter.option])
            for parameter in self._plan.parameters
        }
        path = self._folder / f"trial-{one.number:03}"
        total_steps = one.user_attrs.get(_TOTAL_STEPS)
        return SweepTrial(one.number, values, path, self._seeds, total_steps=total_steps)

    def prefer(self, values: Mapping[str, str]) -> None:
        """Gives the first trial these values, unless there is a trial already.

        Args:
          values: option -> value as written; ignored unless the search may choose all of them.
        """
        spaces = {one.option: one.space for one in self._plan.parameters}
        matches = {option: space.match(values.get(option, "")) for option, space in spaces.items()}
        waits = any(not one.state.is_finished() for one in self._study.trials)
        if waits or self.trials() or None in matches.values():
            return
        self._study.enqueue_trial(
            {
                option: value if isinstance(spaces[option], Choice) else float(str(value))
                for option, value in matches.items()
            }
        )

    def ask(self) -> SweepTrial:
        """Returns a new trial."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            live = self._study.ask(self._distributions)
        self._live[live.number] = live
        return self._trial(live)

    def report(self, trial: SweepTrial, values: Sequence[float]) -> bool:
        """Records the values of a running trial's evaluations; returns whether to stop it.

        Args:
          trial: the trial.
          values: the values of all its evaluations so far; higher is better.
        """
        self.note_total_steps(trial)
        live = self._live.get(trial.number)
        if live is None:  # It was begun by an earlier process.
            live = self._optuna.trial.Trial(self._study, self._study.trials[trial.number]._trial_id)
            self._live[trial.number] = live
        if _IS_STOPPED in live.user_attrs:
            return True  # Decided by an earlier process, which ended before it acted on it.
        # Stopping a trial that has taken all steps would save nothing.
        has_all_steps = trial.has_all_steps()
        known = self._study.trials[trial.number].intermediate_values
        for index, value in enumerate(values, start=1):
            if index not in known:
                live.report(float(value), index)
                if live.should_prune() and not has_all_steps:
                    live.set_user_attr(_IS_STOPPED, True)
                    return True
        return False

    def begin(self, trial: SweepTrial) -> None:
        """Does nothing; see `runner.TrialScheduler`."""

    def advance(self, trials: Sequence[SweepTrial]) -> list[SweepTrial]:
        """Returns no trials, because this search pauses none."""
        return []

    def note_total_steps(self, trial: SweepTrial) -> None:
        """Stores the length of a trial's runs, once the first one has begun.

        The config of a run has it only until somebody trains the run for longer.

        Args:
          trial: the trial, whose `total_steps` is set.
        """
        if trial.total_steps is None and (score := trial.score()) and score.end is not None:
            self.note(trial, _TOTAL_STEPS, score.end)
            trial.total_steps = score.end

    def note(self, trial: SweepTrial, name: str, value: Any) -> None:
        """Stores plain data with a trial.

        Args:
          trial: the trial.
          name: the name of the note; an earlier one of this name is replaced.
          value: any value that JSON can hold.
        """
        number = trial.number
        frozen = self._study.trials[number]
        self._optuna.trial.Trial(self._study, frozen._trial_id).set_user_attr(name, value)

    def note_of(self, trial: SweepTrial, name: str) -> Any:
        """Returns the value that `note` has stored; None if there is none.

        Args:
          trial: the trial.
          name: the name of the note.
        """
        return self._study.trials[trial.number].user_attrs.get(name)

    def add_round(self, decided: Mapping[str, Any]) -> None:
        """Stores the decisions of a comparison of all trials, atomically.

        Args:
          decided: any mapping that JSON can hold.
        """
        self._study.set_user_attr(f"{_ROUND}{len(self.rounds())}", dict(decided))

    def rounds(self) -> list[dict[str, Any]]:
        """Returns what `add_round` has stored, the first one first."""
        kept = self._study.user_attrs
        count = sum(name.startswith(_ROUND) for name in kept)
        return [kept[f"{_ROUND}{index}"] for index in range(count)]

    def finish(self, trial: SweepTrial, value: float | None) -> None:
        """Records how a trial has ended, as its `state` says.

        Args:
          trial: the trial.
          value: the value at its last evaluation; None if it is not done.
        """
        if trial.state is TrialState.FAILED:
            # For Optuna, it is still running, as it could not be retried otherwise. The sampler
            # treats settings without a result as bad ones.
            self.note(trial, _HAS_FAILED, True)
            return
        kinds = self._optuna.trial.TrialState
        states = {TrialState.DONE: kinds.COMPLETE, TrialState.STOPPED: kinds.PRUNED}
        given = value if trial.state is TrialState.DONE else None
        self._study.tell(trial.number, given, state=states[trial.state])

    def importance(self) -> dict[str, float]:
        """Returns the share of the differences that each option explains, the highest first.

        PED-ANOVA (Watanabe et al. 2023, arXiv:2304.10255): how much the values of the best quarter
        of the trials differ from those of all. A trial that was stopped counts with its last
        evaluation. Empty for fewer than four trials.
        """
        create = self._optuna.trial.create_trial
        kinds = self._optuna.trial.TrialState
        ended = []
        for one in self._study.trials:
            reached = list(one.intermediate_values.items())
            if one.state in (kinds.COMPLETE, kinds.PRUNED) and reached:
                value = one.value if one.state is kinds.COMPLETE else max(reached)[1]
                ended.append(
                    create(params=one.params, distributions=one.distributions, value=value)
                )
        if len(ended) < _FEWEST_FOR_IMPORTANCE:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = self._optuna.create_study(direction="maximize")
            study.add_trials(ended)
            evaluator = self._optuna.importance.PedAnovaImportanceEvaluator(
                target_quantile=_BEST_SHARE
            )
            return self._optuna.importance.get_param_importances(study, evaluator=evaluator)
