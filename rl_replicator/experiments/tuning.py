"""Runs the trials of an experiment with Ray Tune.

What must last is in files of our own: the list of trials, and their run directories. Ray Tune
starts anew each time, learns of the trials that have ended, and continues the others. So an
experiment may be killed at any time.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import types
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import BasicVariantGenerator, Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.stopper import NoopStopper

from launchpad.engines.ray import cluster
from rl_replicator.errors import DiskError, UsageError
from rl_replicator.experiments import actor
from rl_replicator.experiments.experiment import Experiment
from rl_replicator.experiments.space import Search
from rl_replicator.experiments.trial import Trial, TrialEvaluation, TrialState, objective
from rl_replicator.processes import signals

# If this many trials fail before one has run without failure, the rest would fail as well.
_HOPELESS = 3
_MANY = 10**9
_METRIC: Any = {"metric": "objective", "mode": "max"}
_SETTINGS = {
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "1e9",  # Its own record is not used.
    "RAY_AIR_NEW_OUTPUT": "0",  # The old one is silent.
}


def run(
    experiment: Experiment,
    trials: list[Trial],
    note: Callable[[Trial], None],
    look: Callable[[], None],
) -> int | None:
    """Runs the trials that wait, and new ones until there are enough. Called by the main thread.

    Args:
      experiment: what the trials run.
      trials: all trials so far, which are updated; those of a search are added.
      note: called when a trial has changed, and before a new one begins.
      look: called several times a second.

    Returns:
      The number of the signal that ended it; None if all trials have ended, or the first ones of a
      search failed one after the other.

    Raises:
      DiskError: if the disk is full. The trials save, if there is space for that.
      OSError: if `note` has raised it. The trials have saved.
      UsageError: if there is no such cluster, or the runs have no evaluation to compare.
    """
    is_waiting = any(one.state is TrialState.WAITING for one in trials)
    if not is_waiting and (experiment.search is None or experiment.trials <= len(trials)):
        return None
    os.environ.update(_SETTINGS)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    folder = actor.tune_folder(experiment)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    watch = _Watch(experiment, trials, note, look)
    with signals.handled(watch.on_signal):
        try:
            connection = cluster.acquire(experiment.address)
        except (ValueError, ConnectionError) as error:
            raise UsageError(f"--address: {error}") from None
        try:
            # Another function, so that it replaces Ray's own handler of SIGTERM, which aborts.
            with signals.handled(lambda *received: watch.on_signal(*received)):
                _tune(watch)
        except KeyboardInterrupt:  # A second signal: the processes end with their cluster.
            pass
        finally:
            cluster.release(connection)
            shutil.rmtree(folder, ignore_errors=True)
    for one in trials:
        if one.state is TrialState.RUNNING:
            one.state = TrialState.WAITING
    if watch.error is not None:
        raise watch.error
    return watch.signals[0] if watch.signals else None


def _tune(watch: _Watch) -> None:
    experiment, search = watch.experiment, watch.experiment.search
    waiting = [one for one in watch.trials if one.state is TrialState.WAITING]
    algorithm: Any = BasicVariantGenerator(max_concurrent=experiment.parallel)
    scheduler: TrialScheduler = FIFOScheduler()
    grid: list[dict[str, Any]] = [{"name": one.name, "values": dict(one.values)} for one in waiting]
    samples = 1
    if search is not None and search.scheduler == "pbt":
        algorithm = BasicVariantGenerator()  # Trials that have paused do not count as running.
        scheduler = _population(search)
        for one in grid:
            one["values"] = search.read(one["values"])
    elif search is not None:
        algorithm = _Optuna(watch, search, waiting)
        samples = len(waiting) + max(0, experiment.trials - len(watch.trials))
        if search.scheduler == "asha":
            scheduler = _Asha(watch, search)
    share = _share(experiment.parallel)
    tune.run(
        tune.with_parameters(
            actor.TrainingTrial,
            experiment=experiment,
            share=share,
            cwd=os.getcwd(),
            python_path=os.environ.get("PYTHONPATH"),
        ),
        name="results",
        storage_path=str(actor.tune_folder(experiment).absolute()),
        config={} if isinstance(algorithm, Searcher) else {"trial": tune.grid_search(grid)},
        num_samples=samples,
        search_alg=algorithm,
        scheduler=scheduler,
        max_concurrent_trials=experiment.parallel if isinstance(algorithm, Searcher) else None,
        resources_per_trial={"cpu": share},
        trial_name_creator=_name,
        trial_dirname_creator=_name,
        stop=_Stopper(watch),
        callbacks=[watch],
        # A population pauses trials whose runs go on until their actor ends.
        reuse_actors=not isinstance(scheduler, PopulationBasedTraining),
        max_failures=2,  # Of an actor, as when its machine is lost: failures of runs are results.
        raise_on_failed_trial=False,
        verbose=0,
    )


def _name(trial: Any) -> str:
    return trial.config["trial"]["name"]


def _share(parallel: int) -> float:
    """Returns the largest number of processors so that `parallel` trials have room."""
    sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    shares = sorted({size / parts for size in sizes for parts in range(1, parallel + 1)})
    share = next(
        (x for x in reversed(shares) if sum(size // x for size in sizes) >= parallel), shares[0]
    )
    # Ray takes whole numbers above one, and four decimals below.
    return float(math.floor(share)) if share >= 1 else math.floor(share * 1e4) / 1e4


class _Watch(tune.Callback):
    """Keeps the trials as Ray Tune reports them, and ends them all if it must.

    Attributes:
      experiment: what the trials run.
      trials: all trials.
      signals: the signals that ask the command to end.
      is_ending: whether no further trial is to begin.
      has_running: whether the actor of a trial is running.
      error: why the experiment cannot continue.
    """

    def __init__(
        self,
        experiment: Experiment,
        trials: list[Trial],
        note: Callable[[Trial], None],
        look: Callable[[], None],
    ):
        """See `run`."""
        self.experiment, self.trials = experiment, trials
        self._note, self._look = note, look
        self.signals: list[int] = []
        self.is_ending = self.has_running = False
        self.error: Exception | None = None
        self._stopped: set[str] = set()

    def note(self, one: Trial) -> None:
        """Tells that a trial has changed; if that cannot be written, all trials save and end."""
        try:
            self._note(one)
        except OSError as error:
            self.error = error

    def stop(self, name: str) -> None:
        """Asks the actor of a trial to end it, because it is worse than others."""
        self._stopped.add(name)
        actor.end_file(self.experiment, name).touch()

    def on_signal(self, number: int, frame: object) -> None:
        """Ends all trials; the second signal does so without saving."""
        if signals.note(number, self.signals) and len(self.signals) > 1:
            raise KeyboardInterrupt

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Shows that a trial is running; called again after a pause."""
        one = self._of(trial)
        one.state = TrialState.RUNNING
        self.note(one)

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Keeps an evaluation, or the end of a trial."""
        one = self._of(trial)
        if result["state"] == actor.FULL_DISK:
            self.error = DiskError(
                f"expected space on the disk, but {one.name} {result['reason']}; the same command "
                "continues"
            )
        elif result["state"] == actor.NO_SCORE:
            self.error = UsageError(
                "expected runs with an evaluation, by which trials are compared, got runs "
                "without; return one from the learner's evaluation()"
            )
        known = {state.value: state for state in TrialState}
        state = known.get(result["state"], TrialState.WAITING)
        if state is TrialState.WAITING and one.name in self._stopped:
            state = TrialState.STOPPED
        one.figure, one.is_highest_best = result["figure"], result["is_highest_best"]
        one.evaluations = [TrialEvaluation(**row) for row in result["evaluations"]]
        one.values, one.origin = result["values"], result["origin"]
        if state is not one.state:
            one.state, one.reason = state, result["reason"]
            self.note(one)

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Notes that the actor of a trial has failed, and not one of its runs."""
        one = self._of(trial)
        one.state = TrialState.FAILED
        one.reason = f"could not be run ({self.experiment.run_dir}/logs/{one.name}.ray.log)"
        self.note(one)

    def on_step_end(self, iteration: int, trials: Sequence[Any], **info: Any) -> None:
        """Looks whether all trials must end."""
        running = [trial for trial in trials if trial.status == "RUNNING"]
        self.has_running = bool(running)
        self.is_ending = bool(self.signals) or self.error is not None or self._is_hopeless()
        if self.is_ending:
            for trial in running:
                actor.end_file(self.experiment, str(trial)).touch()
        self._look()

    def _is_hopeless(self) -> bool:
        unfinished = (TrialState.WAITING, TrialState.RUNNING)
        over = [one for one in self.trials if one.state not in unfinished]
        has_run = any(one.state is not TrialState.FAILED or one.evaluations for one in over)
        return self.experiment.search is not None and len(over) >= _HOPELESS and not has_run

    def _of(self, trial: Any) -> Trial:
        return next(one for one in self.trials if one.name == str(trial))


class _Stopper(NoopStopper):
    """Ends the experiment once all trials have been asked to end and have saved.

    Ray Tune kills actors that take more than a few seconds to end. So they are asked by a file, and
    return a last result.
    """

    def __init__(self, watch: _Watch):
        self._watch = watch

    def stop_all(self) -> bool:
        return self._watch.is_ending and not self._watch.has_running

    def __reduce__(self) -> Any:
        return NoopStopper, ()  # Ray Tune saves it with its own record.


class _Optuna(OptunaSearch):
    """Optuna, which knows the trials that have ended, and first continues those that wait."""

    def __init__(self, watch: _Watch, search: Search, waiting: Sequence[Trial]):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # The seed is the number of trials: a continued search must not repeat its first draws.
        seed = len(watch.trials)
        sampler = (
            optuna.samplers.RandomSampler(seed=seed)
            if search.sampler == "random"
            else optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        )
        first = [search.first] if search.first and not watch.trials else []
        super().__init__(
            space=search.distributions(),
            points_to_evaluate=[search.read(one.values) for one in waiting] + first,
            sampler=sampler,
            **_METRIC,
        )
        self._watch, self._search, self._waiting = watch, search, list(waiting)
        for one in watch.trials:
            if one.state in (TrialState.DONE, TrialState.STOPPED):
                value = objective(one.evaluations, one.is_highest_best)
                self.add_evaluated_point(search.read(one.values), value)
            elif one.state is TrialState.FAILED:  # The sampler takes such settings for bad ones.
                self.add_evaluated_point(search.read(one.values), None, pruned=True)

    def suggest(self, trial_id: str) -> Any:
        if self._watch.is_ending:
            return Searcher.FINISHED
        values = super().suggest(trial_id)
        if self._waiting:
            one = self._waiting.pop(0)
        else:
            name = f"trial-{len(self._watch.trials):03}"
            one = Trial(name, self._search.written(values))
            self._watch.trials.append(one)
            self._watch.note(one)
        return {"trial": {"name": one.name, "values": dict(one.values)}}

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        pass  # Only the last one counts.

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        has_failed = error or (result or {}).get("state") == TrialState.FAILED.value
        super().on_trial_complete(trial_id, None if has_failed else result)

    def save(self, checkpoint_path: str) -> None:
        pass


class _Asha(AsyncHyperBandScheduler):
    """The asynchronous rule of Li et al. 2020 (arXiv:1810.05934), which also knows ended trials."""

    def __init__(self, watch: _Watch, search: Search):
        super().__init__(
            time_attr="training_iteration",
            max_t=_MANY,
            grace_period=search.grace,
            reduction_factor=search.reduction,
            stop_last_trials=False,
            **_METRIC,
        )
        self._watch = watch
        for one in watch.trials:
            if one.state in (TrialState.DONE, TrialState.STOPPED):
                known: Any = types.SimpleNamespace(trial_id=one.name)
                self.on_trial_add(None, known)
                for number in range(1, len(one.evaluations) + 1):
                    value = objective(one.evaluations[:number], one.is_highest_best)
                    result = {"training_iteration": number, "objective": value}
                    super().on_trial_result(None, known, result)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        if super().on_trial_result(tune_controller, trial, result) == TrialScheduler.STOP:
            self._watch.stop(str(trial))
        return TrialScheduler.CONTINUE


def _population(search: Search) -> PopulationBasedTraining:
    """Returns population based training (Jaderberg et al. 2017, arXiv:1711.09846)."""

    def bounded(config: dict[str, Any]) -> dict[str, Any]:
        values = config["trial"]["values"]
        config["trial"]["values"] = search.read(search.written(values))
        return config

    mutations = {one.option: one.mutation() for one in search.parameters}
    return PopulationBasedTraining(
        time_attr="steps",
        perturbation_interval=search.interval,
        hyperparam_mutations={"trial": {"values": mutations}},
        custom_explore_fn=bounded,
        log_config=False,
        **_METRIC,
    )
