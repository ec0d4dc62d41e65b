"""The command line's learners: the registered ones, and those in a user's own module."""

import contextlib
import dataclasses
import importlib
import os
import pkgutil
import shlex
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from rl_replicator.errors import ConfigError, UsageError, check_count
from rl_replicator.learners.contract import Learner, annotation
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.processes.ports import allowing_open_ports
from rl_replicator.runs import trackers
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.plain_data import from_plain, stored_part, to_plain
from rl_replicator.runs.run import SILENT, RunListener, opened
from rl_replicator.runs.run_directory import (
    LENGTHS,
    RunDirectory,
    choose,
    folder_name,
    settled,
)

if TYPE_CHECKING:
    from rl_replicator.exports.model import ExportedModel
    from rl_replicator.learners.loop import Training
    from rl_replicator.replicator import Replicator

_RUNS = Path("runs")
# Kinds of replicas that use several processes, which a supervisor restarts.
_JOBS = ("multi_worker", "multi_worker_async")
# Settings that may grow when the run is resumed.
_FREE = tuple(f"config.{name}" for name in LENGTHS)
# Types of settings that name a place on this machine. They are stored as absolute paths, and may
# change.
_PLACES = (Path, Path | None)
# For a `Training` that takes no step.
_MEASURING = RunOptions(steps_per_call=1, evaluation_seconds=float("inf"))


@dataclasses.dataclass(frozen=True)
class LearnerEvaluationOptions:
    """Evaluate a checkpoint of a learner's run on all of its evaluation data."""

    best: bool = False
    """Use the checkpoint with the best evaluation during training, in place of the newest."""
    data_dir: Path | None = None
    """Where the data lies now. Default: as in training."""


@dataclasses.dataclass(frozen=True)
class LearnerCommand:
    """A learner on the command line: implements `rl_replicator.cli.trainables.Trainable`.

    Attributes:
      name: the name under which the learner is registered; for a learner that is loaded by an
        import path, this path.
      config_type: frozen dataclass with a default for every field. If it has a method
        `on_this_machine`, that replaces settings that are "auto"; the result is saved with the run.
      make_learner: (replicator, config) -> learner; or its import path, if that is slow to import.
    """

    name: str
    config_type: type
    make_learner: "Callable[[Replicator, Any], Learner] | str"
    evaluation_options_type = LearnerEvaluationOptions

    def parse(self, words: Sequence[str], stored: Mapping[str, Any]) -> RunOptions:
        """Reads options from the words; see `rl_replicator.cli.trainables.Trainable`."""
        return tyro.cli(
            RunOptions,
            prog=f"rl-replicator train {self.name}",
            args=words,
            default=self.options_from(stored),
            description=self.config_type.__doc__,
        )

    def options_from(self, plain: Mapping[str, Any]) -> RunOptions:
        """Rebuilds options from plain data; see `rl_replicator.cli.trainables.Trainable`.

        Raises:
          ConfigError: if a field of the config has no default, or the name of a field of
            `RunOptions`.
        """
        _check_fields(self.config_type)
        own = {field.name for field in dataclasses.fields(RunOptions)} - {"config"}
        config = {name: value for name, value in plain.items() if name not in own}
        run = {name: value for name, value in plain.items() if name in own}
        command = f"rl-replicator train {self.name}"
        made = from_plain(self.config_type, config, command)
        return dataclasses.replace(from_plain(RunOptions, run, command), config=made)

    def may_change(self, option: str) -> bool:
        """Returns whether an option may change; see `rl_replicator.cli.trainables.Trainable`."""
        own = {field.name for field in dataclasses.fields(RunOptions)}
        return option.replace("-", "_") not in own | set(LENGTHS)

    def train(self, options: Any, listener: RunListener = SILENT) -> int:
        """Trains with a progress line, and prints the last evaluation.

        Args:
          options: what `parse` has returned.
          listener: is notified of the run and, in the chief's process, of its evaluations.

        Returns:
          Exit status: 0 if the run is complete, 128 + signal if a signal ended it.

        Raises:
          UsageError: after bad input; no existing run was touched.
        """
        trackers.check(options.track)
        _check_can_restart(options)
        options = dataclasses.replace(options, config=_with_absolute_places(options.config))
        base = folder_name(self.name.removesuffix(":make_learner"))
        identity = {"config": to_plain(options.config)}
        asked = options.run_dir, options.resume
        with allowing_open_ports(options.open_ports):
            replicator = _make_replicator(options.replicas, options.deterministic)
            with choose(_RUNS / base, base, self.name, identity, *asked, _FREE) as directory:
                stored = directory.config()["identity"] if directory.exists else {}
                config = settled(options.config, stored.get("config", {}))
                learner = self._make_learner(replicator, config)
                if replicator.is_chief:
                    return self._lead(directory, replicator, learner, config, options, listener)
                return _follow(directory, replicator, learner, options, listener)

    def _lead(
        self,
        directory: RunDirectory,
        replicator: "Replicator",
        learner: Learner,
        config: Any,
        options: RunOptions,
        listener: RunListener,
    ) -> int:
        """Trains in the only process, or in the chief of a job."""
        from rl_replicator.learners.loop import Training, is_finished

        free = (*_FREE, *(f"config.{name}" for name in _places(self.config_type)))
        identity = {"config": to_plain(config)}
        with opened(directory, self.name, identity, listener, free) as run:
            _agree_on_checkpoint(replicator)
            if run.is_continued and is_finished(directory, learner):
                longer = "".join(f" (--{name})" for name in LENGTHS if hasattr(config, name))
                print(
                    f"finished: all {learner.num_steps:,} steps of the run in {directory.path} are "
                    f"done; a longer run continues it{longer}"
                )
                return 0 if run.has_recorded_end else run.finish()
            run.announce()
            training = Training(replicator, learner, directory, options, listener)
            score = _score(learner)  # Once it is known to be a figure of the evaluation.
            # As requested; the identity has the values that were determined on this machine.
            settings = to_plain(options)
            settings |= settings.pop("config")
            run.begin(settings, score)
            with run.failures_recorded():
                signal_number = training.run()
            if signal_number is not None:
                how = _how_to_continue(directory, options)
                print(f"stopped and saved at step {training.step:,}; {how}", flush=True)
                return run.stop(signal_number)
            _print(training, training.figures)
            return run.finish()

    def evaluate(self, run_dir: Path, best: bool = False, data_dir: Path | None = None) -> int:
        """Evaluates a checkpoint on one device and prints the figures.

        Args:
          run_dir: directory of the run.
          best: whether to take the checkpoint with the best evaluation, not the newest.
          data_dir: see `LearnerEvaluationOptions`.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run, no checkpoint, or no evaluation.
        """
        _, training = self._restored(RunDirectory(run_dir), best, data_dir)
        with contextlib.closing(training):  # Its progress line ends before the figures.
            figures = training.measure()
        _print(training, figures)
        return 0

    def exported(
        self, run_dir: Path, best: bool, license_name: str | None, data_dir: Path | None = None
    ) -> "ExportedModel":
        """Returns the trained model of a run; see `rl_replicator.cli.results`.

        Args:
          run_dir: directory of the run.
          best: whether to take the checkpoint with the best evaluation, not the newest.
          license_name: licence that the model card names; None for none.
          data_dir: see `LearnerEvaluationOptions`.

        Raises:
          UsageError: if there is no run or no checkpoint, or the learner serves nothing.
        """
        from rl_replicator.exports.model import Card, ExportedModel

        run = RunDirectory(run_dir)
        learner, training = self._restored(run, best, data_dir)
        served = learner.served()
        if served is None:
            raise UsageError(
                f"expected a learner with a method served(), got {self.name}; return from it the "
                "function to export"
            )
        figures = _written(training.figures)
        facts = {"learner": self.name, "steps": f"{training.step:,}", **figures}
        if license_name is not None:
            facts["licence"] = license_name
        usage = f"Inputs {_described(served.inputs)}. Outputs {_described(served.outputs())}."
        title = f"{self.name} after {training.step:,} steps"
        card = Card(title, facts, usage, run.config()["identity"])
        return ExportedModel(served.function, served.inputs, card, served.tables_of)

    def _restored(
        self, run: RunDirectory, best: bool, data_dir: Path | None
    ) -> "tuple[Learner, Training]":
        """Restores a checkpoint of a run on one device."""
        from rl_replicator.learners.loop import Training

        identity = run.config()["identity"]
        config = from_plain(self.config_type, stored_part(identity, "config", Mapping))
        if data_dir is not None:
            if not hasattr(config, "data_dir"):
                raise UsageError(
                    f"--data-dir: expected a learner with the setting data_dir, got {self.name}; "
                    "leave it out"
                )
            config = dataclasses.replace(config, data_dir=data_dir)
        run.checkpointer(best)  # Raises if there is none.
        replicator = _make_replicator("1", deterministic=False)
        learner = self._make_learner(replicator, config)
        return learner, Training(replicator, learner, run, _MEASURING, best=best)

    def _make_learner(self, replicator: "Replicator", config: Any) -> Learner:
        make: Any = self.make_learner
        if isinstance(make, str):
            make = pkgutil.resolve_name(make)
        learner = make(replicator, config)
        if not isinstance(learner, Learner):
            raise ConfigError(
                f"expected {self.name} to return a rl_replicator.learners.Learner, got "
                f"{type(learner).__name__}; return an instance of a subclass"
            )
        remedy = "set it in its constructor to the number of steps of the whole run"
        check_count(
            f"num_steps of {type(learner).__name__}", getattr(learner, "num_steps", None), remedy
        )
        return learner


def of_module(name: str) -> Any:
    """Returns the command `package.module:name`, or a command for the function of that name.

    Args:
      name: import path of a command, or of a function (replicator, config) -> learner.

    Raises:
      UsageError: if there is no such module or function, or its config is not annotated with a
        dataclass.
    """
    module_name, _, attribute = name.partition(":")
    parts = module_name.split(".")
    try:
        if not all(part.isidentifier() for part in parts):
            raise ModuleNotFoundError(name=module_name)
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name not in [".".join(parts[: i + 1]) for i in range(len(parts))]:
            raise  # The module exists, but something that it imports does not.
        raise UsageError(
            f"expected the name of a module as in an import, such as package.module for the file "
            f"package/module.py in {os.getcwd()}, found no {error.name!r}; correct {name!r}, "
            "change to its directory, or add that to PYTHONPATH"
        ) from None
    function = getattr(module, attribute, None)
    if hasattr(function, "options_from"):
        return function  # It is already a command, such as that of an agent.
    if not callable(function):
        raise UsageError(
            f"expected a function {attribute!r} in the module {module_name}, found none; define "
            f"{attribute or 'make_learner'}(replicator, config)"
        )
    config_type = annotation(function, "config")
    if not (isinstance(config_type, type) and dataclasses.is_dataclass(config_type)):
        raise UsageError(
            f"expected {name} to annotate its config with a dataclass, got {config_type!r}; write "
            f"def {attribute}(replicator, config: Config)"
        )
    return LearnerCommand(name, config_type, function)


def _check_fields(config_type: type) -> None:
    # The options have these names beside the fields of the config, which itself is named `config`.
    taken = {field.name for field in dataclasses.fields(RunOptions)}
    for field in dataclasses.fields(config_type):
        if field.name in taken:
            raise ConfigError(
                f"expected {config_type.__name__} to have no field of RunOptions, got "
                f"{field.name!r}; rename it"
            )
        if dataclasses.MISSING is field.default is field.default_factory:
            raise ConfigError(
                f"expected a default for every field of {config_type.__name__}, got none for "
                f"{field.name!r}; write '{field.name}: ... = VALUE'"
            )


def _places(config_type: type) -> list[str]:
    """Returns the names of the settings that name a place on this machine."""
    hints = typing.get_type_hints(config_type)
    return [field.name for field in dataclasses.fields(config_type) if hints[field.name] in _PLACES]


def _with_absolute_places(config: Any) -> Any:
    """Returns a config with absolute places, so that commands in other folders find them."""
    places = {name: getattr(config, name) for name in _places(type(config))}
    absolute = {name: Path(place).absolute() for name, place in places.items() if place is not None}
    return dataclasses.replace(config, **absolute)


def _described(specs: Mapping[str, Any]) -> str:
    return ", ".join(f"`{name}`: {one.dtype.name} {one.shape}" for name, one in specs.items())


def _is_job(options: RunOptions) -> bool:
    return options.replicas.partition(":")[0] in _JOBS


def _check_can_restart(options: RunOptions) -> None:
    """Refuses a job that would begin a new run whenever its supervisor restarts it.

    Checked before the replicator is made: asynchronous workers, which never open the run, thus end
    with the same error as their chief. A job of one process may have any replicas.
    """
    if options.run_dir is None and (_is_job(options) or os.environ.get("TF_CONFIG")):
        raise ConfigError(
            f"expected --run-dir with --replicas {options.replicas} in a job, got none; name a "
            "directory that all processes of the job share, where it continues after a restart"
        )


def _make_replicator(replicas: str, deterministic: bool) -> "Replicator":
    import tensorflow as tf

    from rl_replicator.backends.make import make

    if deterministic:
        tf.config.experimental.enable_op_determinism()
        # With determinism, random ops without a seed raise. Learners set their own seeds later.
        tf.random.set_seed(0)
    return make(replicas)


def _follow(
    directory: RunDirectory,
    replicator: "Replicator",
    learner: Learner,
    options: RunOptions,
    listener: RunListener,
) -> int:
    """Trains in a process of a job that is not its chief, and prints nothing."""
    from rl_replicator.learners.loop import Training, is_finished

    _agree_on_checkpoint(replicator)
    listener.started(directory)
    if is_finished(directory, learner):
        return 0
    signal_number = Training(replicator, learner, directory, options).run()
    return 0 if signal_number is None else 128 + signal_number


def _agree_on_checkpoint(replicator: "Replicator") -> None:
    """Waits until the chief has set damaged checkpoints aside, so that all see the same one."""
    replicator.reduce("max", np.int64(0))


def _score(learner: Learner) -> Score | None:
    """Returns the figure that selects the best checkpoint, and prints it; None without evaluation.

    A wrong sign before its name is easily overlooked.
    """
    evaluation = learner.evaluation()
    if evaluation is None:
        return None
    best = evaluation.best
    figure, is_highest = best.removeprefix("-"), not best.startswith("-")
    kept, other = ("highest", "lowest") if is_highest else ("lowest", "highest")
    opposite = f"-{figure}" if is_highest else figure
    print(
        f'best/ keeps the checkpoint with the {kept} {figure} (best="{best}"; "{opposite}" keeps '
        f"the {other})",
        flush=True,
    )
    return Score("evaluation", figure, is_highest, end=int(learner.num_steps))


def _how_to_continue(run: RunDirectory, options: RunOptions) -> str:
    if _is_job(options):  # The command that started the processes of the job is unknown here.
        return "the job continues when it is started again by the same command"
    return f"continue with: rl-replicator train --run-dir {shlex.quote(str(run.path))}"


def _written(figures: Mapping[str, float]) -> dict[str, str]:
    return {
        name: f"{value:.4{'g' if 0 < abs(value) < 1e-3 else 'f'}}"
        for name, value in figures.items()
    }


def _print(training: "Training", figures: Mapping[str, float]) -> None:
    from rl_replicator.runs.progress_line import clock

    words = [f"{name} {value}" for name, value in _written(figures).items()]
    words.append(f"after {training.step:,} steps, {clock(training.seconds)}")
    print(", ".join(words), flush=True)
