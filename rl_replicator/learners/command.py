"""Learners on the command line: the registered ones, and those in a user's own module."""

import dataclasses
import importlib
import json
import os
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_replicator.errors import ConfigError, UsageError, check_option
from rl_replicator.runs.run_directory import RunDirectory, choose, from_plain

if TYPE_CHECKING:
    from rl_replicator.learners.learner import Learner
    from rl_replicator.learners.training import Training
    from rl_replicator.replicator import Replicator

_RUNS = Path("runs")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How to run a learner, whatever it learns."""

    replicas: str = "1"
    """Replicas: a number of devices, or a string of `rl_replicator.make` such as multi_worker."""
    run_dir: Path | None = None
    """Directory of the run; one that exists is continued. Default: a new one under `runs/`."""
    resume: bool = False
    """Continue the newest run with the same settings under `runs/`."""
    steps_per_call: int = 10
    """Steps in one compiled call, for a learner with a single step function."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints (longer where one takes more than a twentieth of that)."""
    deterministic: bool = False
    """Compute the same bits in every run, which is slower."""

    def __post_init__(self) -> None:
        check_option(self.steps_per_call >= 1, "steps_per_call", "at least 1", self.steps_per_call)
        seconds = self.checkpoint_seconds
        check_option(seconds > 0, "checkpoint_seconds", "more than 0", seconds)


@dataclasses.dataclass(frozen=True)
class LearnerCommand:
    """A learner on the command line: follows `rl_replicator.cli.trainables.Trainable`.

    Attributes:
      name: what the user types.
      config_type: frozen dataclass with a default for every field.
      make_learner: (replicator, config) -> learner.
    """

    name: str
    config_type: type
    make_learner: "Callable[[Replicator, Any], Learner]"

    def options_type(self, args: Sequence[str] = ()) -> type:
        """`RunOptions` and the fields of the config, side by side, whatever `args` say."""
        del args
        import tyro

        taken = {field.name for field in dataclasses.fields(RunOptions)}
        for field in dataclasses.fields(self.config_type):
            if field.name in taken:
                raise ConfigError(
                    f"expected options of its own in {self.config_type.__name__}, got "
                    f"{field.name!r}, which every learner has; rename it"
                )
        kind: Any = self.config_type
        config: Any = typing.Annotated[kind, tyro.conf.arg(name="")]
        default: Any = dataclasses.field(default_factory=self.config_type)
        options = dataclasses.make_dataclass(
            f"{self.config_type.__name__}Options",
            [("config", config, default)],
            bases=(RunOptions,),
            frozen=True,
        )
        options.__doc__ = self.config_type.__doc__
        return options

    def train(self, options: Any) -> int:
        """Trains, with a live line; prints the last evaluation.

        Args:
          options: an instance of `options_type()`.

        Returns:
          Exit status: 0 when the run is complete, 128 + signal when Ctrl-C or SIGTERM ended it.

        Raises:
          UsageError: bad input; no existing run was touched.
        """
        replicator, learner = self._make(options.replicas, options.config, options.deterministic)
        identity = {"config": _json(dataclasses.asdict(options.config))}
        run = self._directory(replicator, options, identity)
        if not replicator.is_chief:
            return _train(replicator, learner, run, options)
        with run.opened(self.name, identity) as there:
            run.describe(self.name, identity, _plain(options))
            print(f"{'continuing' if there else 'training'} in {run.path}", flush=True)
            return _train(replicator, learner, run, options)

    def evaluate(self, run_dir: Path, episodes: int, seed: int) -> int:
        """Evaluates the newest checkpoint on one device and prints its figures.

        Args:
          run_dir: of the run.
          episodes: of no meaning here; all data is gone through.
          seed: likewise.

        Returns:
          Exit status 0.

        Raises:
          UsageError: there is no run, no checkpoint, or nothing to evaluate.
        """
        del episodes, seed
        from rl_replicator.learners.training import Training

        run = RunDirectory(run_dir)
        config = from_plain(self.config_type, run.config()["identity"]["config"])
        if not run.checkpoints.is_dir():
            raise UsageError(
                f"expected a checkpoint in {run.checkpoints}, found none yet; train for longer"
            )
        replicator, learner = self._make("1", config, deterministic=False)
        training = Training(replicator, learner, run, steps_per_call=1, checkpoint_seconds=60.0)
        _print(training, training.measure())
        return 0

    def video(self, run_dir: Path, output: Path | None, seed: int) -> int:
        """Raises `UsageError`: there is no episode to film."""
        raise UsageError(
            f"expected a run of an agent, got {run_dir}, a run of {self.name}, which has no "
            "episodes to film; see its metrics and pictures instead"
        )

    def _make(
        self, replicas: str, config: Any, deterministic: bool
    ) -> "tuple[Replicator, Learner]":
        import tensorflow as tf

        import rl_replicator as rr
        from rl_replicator.learners.learner import Learner

        if deterministic:
            tf.config.experimental.enable_op_determinism()
            tf.random.set_seed(
                0
            )  # Without any, random operations are refused; learners set theirs.
        replicator = rr.make(replicator_name(replicas))
        learner = self.make_learner(replicator, config)
        if not isinstance(learner, Learner):
            raise ConfigError(
                f"expected {self.name} to return a rl_replicator.learners.Learner, got "
                f"{type(learner).__name__}; subclass it"
            )
        return replicator, learner

    def _directory(self, replicator: "Replicator", options: Any, identity: dict) -> RunDirectory:
        if replicator.num_processes > 1 and options.run_dir is None:
            raise ConfigError(
                f"expected --run-dir in a job of {replicator.num_processes} processes, got "
                "nothing; name one directory that all of them see"
            )
        base = self.name.removesuffix(":make_learner").replace(":", "-")
        if not replicator.is_chief:
            return RunDirectory(options.run_dir)
        return choose(_RUNS / base, base, self.name, identity, options.run_dir, options.resume)


def of_module(name: str) -> Any:
    """Returns what `package.module:name` names: a command, or one for the `make_learner` there.

    Raises:
      UsageError: there is no such module or function, or its config is not to be seen.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        parts = module_name.split(".")
        if error.name not in [".".join(parts[: i + 1]) for i in range(len(parts))]:
            raise  # The module is there; something that it imports is not.
        raise UsageError(
            f"expected a module such as the file {'/'.join(parts)}.py in {os.getcwd()}, found no "
            f"{error.name!r}; go to its directory, or put that on PYTHONPATH"
        ) from None
    function = getattr(module, attribute, None)
    if hasattr(function, "options_type"):
        return function  # A command itself, such as that of an agent.
    if not callable(function):
        raise UsageError(
            f"expected a function {attribute!r} in {module.__file__}, found none; define "
            f"{attribute or 'make_learner'}(replicator, config)"
        )
    hints = typing.get_type_hints(function)
    config_type = hints.get("config")
    if not (isinstance(config_type, type) and dataclasses.is_dataclass(config_type)):
        raise UsageError(
            f"expected {name} to say which dataclass its config is, got {config_type}; write "
            f"def {attribute}(replicator, config: Config)"
        )
    return LearnerCommand(name, config_type, function)


def replicator_name(replicas: str) -> str:
    """`--replicas`: a number of devices, or what `rl_replicator.make` takes."""
    if not replicas.isdigit():
        return replicas
    return "single_device" if int(replicas) == 1 else f"multi_device:{int(replicas)}"


def _train(replicator: "Replicator", learner: "Learner", run: RunDirectory, options: Any) -> int:
    from rl_replicator.learners.training import Training

    training = Training(
        replicator, learner, run, options.steps_per_call, options.checkpoint_seconds
    )
    signal_number = training.run()
    if signal_number is not None:
        if replicator.is_chief:
            print(
                f"stopped and saved at step {training.step:,}; go on with: --run-dir {run.path}",
                flush=True,
            )
        return 128 + signal_number
    if replicator.is_chief:
        _print(training, _last_figures(run))
    return 0


def _last_figures(run: RunDirectory) -> dict[str, float]:
    from rl_replicator.runs.metrics import read_metrics

    table = read_metrics(run.path, "evaluation")
    return {name: column[-1] for name, column in list(table.items())[2:]}


def _print(training: "Training", figures: dict[str, float]) -> None:
    from rl_replicator.runs.progress_line import clock

    words = [f"{name} {value:.4f}" for name, value in figures.items()]
    words.append(f"after {training.step:,} steps, {clock(training.seconds)}")
    print(", ".join(words), flush=True)


def _plain(options: Any) -> dict[str, Any]:
    plain = dataclasses.asdict(options)
    plain.update(plain.pop("config"))
    return _json(plain)


def _json(plain: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it; paths become texts."""
    return json.loads(json.dumps(plain, default=str))
