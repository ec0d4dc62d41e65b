"""The command line of an agent: train it, evaluate a run."""

import contextlib
import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from agents.runs.options import AgentOptions, EvaluationOptions, PixelAgentOptions
from environments.errors import lacks
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.runs.plain_data import as_stored, from_plain, stored_part, to_plain
from rl_replicator.runs.run import SILENT, RunListener

if TYPE_CHECKING:
    from acme import specs

    from agents.agent import Agent
    from agents.task import Task
    from rl_replicator.exports.model import ExportedModel

# Settings that a checkpoint fixes: its tables, rows or critic depend on them, or they are only
# initial values.
_FIXED = ("replay.", "memory.", "discount", "value-", "initial-temperature")


@dataclasses.dataclass(frozen=True)
class Kind:
    """The options that determine which others there are, and their initial values."""

    preset: str = "default"
    pixels: bool = False
    offline: str | None = None


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
      presets: other values of all hyper-parameters: name -> an instance of `config` or
        `pixel_config`.
    """

    name: str
    config: type
    pixel_config: type | None
    factory: str
    presets: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def parse(self, words: Sequence[str], stored: Mapping[str, Any]) -> AgentOptions:
        """Reads options from the words; see `rl_replicator.cli.trainables.Trainable`.

        `--preset` and `--pixels` determine the initial values of all others, and which there are.
        """
        from rl_replicator.cli import options, trainables

        names = [field.name for field in dataclasses.fields(Kind)]
        before = Kind(**{name: stored[name] for name in names if name in stored})
        kind, _ = options.parse_known(before, words)
        trainables.check_kept(stored, dataclasses.asdict(kind))
        default = self.options_from({"env": "any", **stored, **dataclasses.asdict(kind)})
        if "env" not in stored:
            unset = tyro.MISSING if kind.offline is None else ""
            default = dataclasses.replace(default, env=unset)
        command, text = f"rl-replicator train {self.name}", self.config.__doc__
        return options.parse(type(default), command, words, default, text)

    def options_from(self, plain: Mapping[str, Any]) -> AgentOptions:
        """Rebuilds options from plain data; see `rl_replicator.cli.trainables.Trainable`."""
        is_pixels = bool(plain.get("pixels"))
        kind = self.config_type(is_pixels)
        command = f"rl-replicator train {self.name}"
        base = PixelAgentOptions if is_pixels else AgentOptions
        options = from_plain(base, {**plain, "agent": {}}, command)
        presets = {Kind.preset: kind()}
        presets |= {name: one for name, one in self.presets.items() if type(one) is kind}
        check_option(options.preset in presets, "preset", " or ".join(presets), options.preset)
        changes = stored_part(plain, "agent", Mapping) if "agent" in plain else {}
        values = as_stored(presets[options.preset], "agent.")
        agent = from_plain(kind, _updated(values, changes), command, "agent.")
        return dataclasses.replace(options, agent=agent)

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
        # The code of an environment may change the working directory.
        root = Path("runs").absolute()
        if options.run_dir is not None:
            options = dataclasses.replace(options, run_dir=options.run_dir.absolute())
        # An unknown environment is noticed before TensorFlow is imported.
        environment_spec, form = options.task.described()
        if options.env_engine == "envpool":
            from environments import engines

            engines.check_envpool(options.env)
        from agents.runs.run import train

        return train(self, options, root, environment_spec, form, listener)

    def evaluate(
        self,
        run_dir: Path,
        episodes: int,
        seed: int,
        best: bool = False,
        out: Path | None = None,
    ) -> int:
        """Plays episodes with the policy of a run and prints their returns.

        Args:
          run_dir: directory of the run.
          episodes: number of episodes to play.
          seed: seed of the environment.
          best: whether to take the checkpoint with the best evaluation, not the newest.
          out: film of the first episode; None for none.

        Returns:
          Exit status 0.

        Raises:
          UsageError: if there is no run or no checkpoint, or no film can be written.
        """
        from agents.environment_loop import evaluation_episode
        from agents.nodes import starts
        from agents.nodes.evaluator import counted
        from agents.policies.playing import Player, film
        from agents.policies.policy import restore
        from rl_replicator.runs.run_directory import RunDirectory
        from rl_replicator.runs.statistics import number

        with contextlib.nullcontext() if out is None else film(out) as show:
            policy = restore(RunDirectory(run_dir), self, best)
            with policy.make_environment(seed) as environment:
                actor, most = policy.actor, policy.max_actions
                player = Player(policy.task, environment, actor, most)
                returns = [] if show is None else list(player.play(show, episodes=1))
                rows = [starts.row(each, environment.start()) for each in returns]
                while len(rows) < episodes:
                    played = evaluation_episode(environment, actor, most)
                    assert played is not None  # Nothing gives it up.
                    rows.append(starts.row(played.episode_return, environment.start()))
        returns = [each[starts.RETURN] for each in rows]
        mean = sum(returns) / len(returns)
        print(
            f"return {number(mean)} (min {number(min(returns))}, max {number(max(returns))}, "
            f"{counted(episodes)})"
        )
        if (told := starts.find(rows)) is not None:
            print(told)
        if out is not None:
            print(f"film: return {number(returns[0])}, {out}")
        return 0

    def exported(
        self, run_dir: Path, best: bool, license_name: str | None, data_dir: Path | None = None
    ) -> "ExportedModel":
        """Returns the policy of a run as a model; see `rl_replicator.cli.results`.

        Args:
          run_dir: directory of the run.
          best: whether to take the checkpoint with the best evaluation, not the newest.
          license_name: licence named in the model card; None for none.
          data_dir: None: an agent has no data.

        Raises:
          UsageError: if there is no run or no checkpoint, or the agent cannot be exported.
        """
        check_option(data_dir is None, "data_dir", "none for the run of an agent", data_dir)
        from agents.policies.export import export_policy
        from agents.policies.policy import restore
        from rl_replicator.runs.run_directory import RunDirectory

        run = RunDirectory(run_dir.absolute())
        return export_policy(restore(run, self, best), self, run, license_name)

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
