"""The command line of an agent: train it, evaluate a run, record a video."""

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.runs.options import AgentOptions, EvaluationOptions, PixelAgentOptions
from environments.errors import lacks
from rl_replicator.cli import arguments
from rl_replicator.errors import ConfigError
from rl_replicator.runs.listener import SILENT, RunListener
from rl_replicator.runs.plain_data import from_plain, stored_part, to_plain

if TYPE_CHECKING:
    from acme import specs

    from agents.agent import Agent
    from agents.task import Task
    from rl_replicator.exports.model import ExportedModel

_PRESET = "--preset"
_DEFAULT = "default"
# Settings that a checkpoint fixes: its tables, rows or critic depend on them, or they are only
# initial values.
_FIXED = ("replay.", "discount", "value-min", "value-max", "initial-temperature")


@dataclasses.dataclass(frozen=True)
class AgentCommand:
    """An agent on the command line: the object behind an entry point of `rl_replicator.trainables`.

    Attributes:
      name: the name under which the agent is registered; for an agent that is loaded by an import
        path, this path.
      config: frozen dataclass of its hyper-parameters, each with a default.
      pixel_config: the same for learning from pixels, with `agents.config.PixelSettings`; None if
        the agent does not learn from pixels.
      factory: import path `module:name` of the agent's class or function: (config, environment
        spec) -> `agents.agent.Agent`. A path, so that `--help` does not import TensorFlow.
      presets: other values of all hyper-parameters from state: name -> an instance of `config`.
    """

    name: str
    config: type
    pixel_config: type | None
    factory: str
    presets: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def options_type(self, args: Sequence[str] = ()) -> type[AgentOptions]:
        """Returns the dataclass of all options.

        Args:
          args: words of the command; `--pixels` among them asks for the options from pixels, and
            `--preset NAME` for the values of a preset.

        Raises:
          ConfigError: if the agent does not learn from pixels.
        """
        base: type[AgentOptions] = AgentOptions
        config, presets = self.config, self.presets
        if "--pixels" in args:
            base, config, presets = PixelAgentOptions, self.config_type(pixels=True), {}
        # A name that is not among the presets is refused when the options are parsed.
        names, chosen = (_DEFAULT, *presets), arguments.pop(list(args), _PRESET)
        preset = chosen[-1] if chosen and chosen[-1] in names else _DEFAULT
        values = presets.get(preset, config())
        options = dataclasses.make_dataclass(
            f"{config.__name__}Options",
            [
                ("preset", Literal[names], dataclasses.field(default=preset)),
                ("agent", config, dataclasses.field(default=values)),
            ],
            bases=(base,),
            frozen=True,
            kw_only=True,
        )
        options.__doc__ = config.__doc__
        return options

    def alternatives(self) -> Mapping[str, type]:
        """Returns the flags that change the options: flag -> dataclass of the options with it."""
        if self.pixel_config is None:
            return {}
        return {"--pixels": self.options_type(["--pixels"])}

    def options_from(self, plain: Mapping[str, Any]) -> AgentOptions:
        """Rebuilds options from plain data; see `rl_replicator.cli.trainables.Trainable`."""
        words = ["--pixels"] if plain.get("pixels") else []
        if "preset" in plain:
            words += [_PRESET, str(plain["preset"])]
        kind = self.options_type(words)
        agent = plain.get("agent", {})
        if isinstance(agent, Mapping):
            values: Any = next(f.default for f in dataclasses.fields(kind) if f.name == "agent")
            plain = {**plain, "agent": _updated(values, agent)}
        return from_plain(kind, plain, f"rl-replicator train {self.name}")

    def may_change(self, option: str) -> bool:
        """Returns whether an option may change; see `rl_replicator.cli.trainables.Trainable`."""
        group, _, name = option.partition(".")
        return group == "agent" and not name.startswith(_FIXED)

    @property
    def evaluation_options_type(self) -> type:
        """Dataclass of the options of `evaluate`."""
        return EvaluationOptions

    def make_agent(self, config: Any, environment_spec: "specs.EnvironmentSpec") -> "Agent":
        """Makes the agent.

        Args:
          config: its hyper-parameters.
          environment_spec: the spec of the environment to act in.

        Raises:
          ConfigError: if the config does not fit the environment, or there is no such factory.
        """
        module, _, name = self.factory.partition(":")
        try:
            factory = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            if not lacks(module, error):
                raise  # The module exists, but something that it imports does not.
            factory = None
        if factory is None:
            raise ConfigError(
                f"expected the factory of {self.name} at {self.factory}, found none; correct the "
                "path in its AgentCommand"
            )
        return factory(config, environment_spec)

    def restore(self, identity: Mapping[str, Any]) -> tuple["Task", Any]:
        """Returns the task and the hyper-parameters of a run.

        Args:
          identity: `AgentOptions.identity`, from the run's directory.

        Raises:
          UsageError: if it is not what a run has stored.
        """
        from agents.task import Task

        is_pixels = identity.get("pixels") is not None
        agent = stored_part(identity, "agent", Mapping)
        config = from_plain(self.config_type(is_pixels), agent)
        return Task.stored(identity), config

    def train(self, options: AgentOptions, listener: RunListener = SILENT) -> int:
        """Trains, with a live line; ends with an evaluation, a plot and a video.

        Args:
          options: options of the run.
          listener: is notified of the run and its evaluations.

        Returns:
          Exit status: 0 if the run is complete, 128 + signal if a signal ended it.

        Raises:
          UsageError: bad input; no existing run was touched.
        """
        if options.launch == "processes":
            import launchpad as lp

            # In parallel with the imports of this process, which take as long.
            lp.preload("agents.runs.imports", self.factory.partition(":")[0])
        # An unknown environment is noticed before TensorFlow is imported.
        environment_spec = options.task.spec()
        if options.env_engine == "envpool":
            from environments.engines import envpool_tasks

            envpool_tasks.check(options.env)
        from agents.runs.training import train

        return train(self, options, environment_spec, listener)

    def evaluate(self, run_dir: Path, episodes: int, seed: int, best: bool = False) -> int:
        """Plays episodes with the policy of a run and prints their returns.

        Args:
          run_dir: directory of the run.
          episodes: number of episodes to play.
          seed: seed of the environment.
          best: whether to take the checkpoint with the best evaluation, not the newest.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run or no checkpoint.
        """
        from agents.nodes.evaluation_figures import counted
        from agents.runs.restored import evaluate
        from rl_replicator.runs.statistics import number

        returns = evaluate(self, run_dir, episodes, seed, best)
        mean = sum(returns) / len(returns)
        print(
            f"return {number(mean)} (min {number(min(returns))}, max {number(max(returns))}, "
            f"{counted(episodes)})"
        )
        return 0

    def exported(self, run_dir: Path, best: bool, license_name: str | None) -> "ExportedModel":
        """Returns the policy of a run as a model; see `rl_replicator.cli.export`.

        Args:
          run_dir: directory of the run.
          best: whether to take the checkpoint with the best evaluation, not the newest.
          license_name: licence named in the model card; None for none.

        Raises:
          UsageError: if there is no run or no checkpoint, or the agent cannot be exported.
        """
        from agents.policies.export import export_policy
        from agents.policies.policy import restore
        from rl_replicator.runs.run_directory import RunDirectory

        run = RunDirectory(run_dir)
        return export_policy(restore(run, self, best), self, run, license_name)

    def video(self, run_dir: Path, output: Path | None, seed: int) -> int:
        """Records an episode of the newest checkpoint's policy and prints the file's path.

        Args:
          run_dir: directory of the run.
          output: an .mp4 or .gif; default: in the run's directory.
          seed: the seed of the environment.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run or no checkpoint.
        """
        from agents.runs.restored import film
        from rl_replicator.runs.statistics import number

        path, episode_return = film(self, run_dir, output, seed)
        print(f"video {path} (return {number(episode_return)})")
        return 0

    def config_type(self, pixels: bool) -> type:
        """Returns the dataclass of the hyper-parameters.

        Args:
          pixels: whether the agent learns from pixels.

        Raises:
          ConfigError: if `pixels` is set but the agent does not learn from pixels.
        """
        if not pixels:
            return self.config
        if self.pixel_config is None:
            raise ConfigError(
                f"expected an agent that learns from pixels, got {self.name}; leave --pixels out"
            )
        return self.pixel_config


def _updated(config: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config as plain data, with some settings, in its dataclasses too, changed."""
    updated = {**to_plain(config), **changes}
    for name, change in changes.items():
        value = getattr(config, name, None)
        if dataclasses.is_dataclass(value) and isinstance(change, Mapping):
            updated[name] = _updated(value, change)
    return updated
