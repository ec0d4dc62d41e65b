"""What happens before the first node of a run starts: settings, checks, and a filled replay."""

import dataclasses
import functools
import logging
import sys
from collections.abc import Mapping
from typing import Any

from agents import config
from agents.agent import Agent
from agents.datasets import prefill
from agents.datasets.minari_files import EpisodeDataset, open_dataset
from agents.nodes.run_plan import Replicas
from agents.replay.config import ReplayConfig
from agents.replay.memory_estimate import available_memory
from agents.runs.options import AgentOptions, PixelAgentOptions
from environments import PixelConfig
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError, check_option
from rl_replicator.runs.run_directory import AUTO, RunDirectory, adopted

_LOG = logging.getLogger("agents")
# Low estimates of the memory of an environment, and of an actor; in a separate process, an actor
# also needs that of TensorFlow.
_ENVIRONMENT_BYTES = 20e6
_ACTOR_BYTES = {"threads": 0.0, "processes": 280e6, "ray": 280e6}


def resolved(options: AgentOptions, run: RunDirectory) -> AgentOptions:
    """Returns the options of a run with nothing left to "auto".

    A run that is continued keeps what it began with. The rest is determined by the task and by this
    machine.

    Args:
      options: the options as they were asked for.
      run: the run, which need not have begun.
    """
    stored: Mapping[str, Any] = {}
    if run.exists:
        stored = run.config()["identity"]
    changes: dict[str, Any] = {}
    if isinstance(options, PixelAgentOptions):
        frame = adopted(options.frame, stored.get("pixels", {}))
        changes["frame"] = _with_renderer(options, frame)
    repeat = options.task.action_repeat
    changes["agent"] = config.resolved(options.agent, stored.get("agent", {}), repeat)
    return dataclasses.replace(options, **changes)


def _with_renderer(options: PixelAgentOptions, frame: PixelConfig) -> PixelConfig:
    """Returns the frame with the renderer that suits this machine, unless it names one."""
    if frame.render != AUTO:
        return frame
    environment = options.task.make(seed=0)
    mode = environment.render_mode
    environment.close()
    return frame if mode == "own" else dataclasses.replace(frame, render=mode)


def check(agent: Agent, options: AgentOptions, replicas: Replicas) -> list[str]:
    """Checks what can be checked before a run is touched; returns the lines that announce it.

    Args:
      agent: the agent.
      options: the resolved options.
      replicas: the learner's replicas.

    Raises:
      UsageError: if batch, replicas, shards and rate limiter do not fit each other; or if actors,
        GPUs or memory exceed those of this machine.
    """
    _check_actors(options)
    if options.dataset is not None:
        config.check_no_memory(
            options.agent, "with --prefill or --offline, whose steps have no states"
        )
    if options.address is None:
        replicas.check_gpus()
    agent.make_tables(replicas.num_replicas, options.replay_shards, options.online_fraction)
    return _announce(agent, options)


def _check_actors(options: AgentOptions) -> None:
    """Refuses more actors and environments than fit into the memory of this machine."""
    memory = available_memory()
    # That of a cluster is not known here.
    if options.address is not None or memory == float("inf"):
        return
    actors = options.actors
    base = _ACTOR_BYTES[options.launch]
    where = f"with --launch {options.launch} and {memory / 1e9:.1f} GB of free memory"
    most = max(1, int(memory / (base + _ENVIRONMENT_BYTES)))
    check_option(actors <= most, "actors", f"at most {most} {where}", actors)
    most = max(1, int((memory / actors - base) / _ENVIRONMENT_BYTES))
    expected = f"at most {most} with --actors {actors}, {where.removeprefix('with ')}"
    per_actor = options.envs_per_actor
    check_option(per_actor <= most, "envs_per_actor", expected, per_actor)


def _announce(agent: Agent, options: AgentOptions) -> list[str]:
    """Returns what a run from pixels announces: frame rate and size of the replay.

    Raises:
      UsageError: if a replay of frames does not fit into the memory of this machine.
    """
    task = options.task
    # The dataset of a run that is continued may be gone.
    inserts = task.agent_steps(options.steps) if options.dataset is None else sys.maxsize
    if task.pixels is not None:  # Drawing may take long, or never return.
        print(f"measuring frames of {task.name}", flush=True)
    size = agent.estimate_memory(lambda: task.make(seed=0), inserts)
    if size is None:
        return []
    if options.deterministic and (windows := getattr(agent, "sequences", None)) is not None:
        each = size.bytes_each * windows.length / windows.period
        size = dataclasses.replace(size, bytes_each=each, basis="windows share no rows")
    excess = size.excess(available_memory()) if options.address is None else ""
    if task.pixels is None:
        if excess:  # Compressed, the rows may fit.
            _LOG.warning("%s", excess)
        return []
    if excess:
        raise UsageError(f"{excess}, or the size of --frame")
    with task.make(seed=0) as environment:
        return [environment.describe_rendering(), f"replay: {size}"]


def warn_if_too_short(options: AgentOptions) -> None:
    """Warns of a run that ends before its learner starts."""
    replay = getattr(options.agent, "replay", None)
    if not isinstance(replay, ReplayConfig) or (
        options.dataset is not None and options.online_fraction == 1
    ):
        return
    actions = options.task.agent_steps(options.steps)
    if actions <= replay.min_size:
        _LOG.warning(
            "the learner starts after %s transitions (--agent.replay.min-size), and the run ends "
            "after --steps %s%s: it trains nothing; raise --steps, or lower the former",
            *(f"{count:,}" for count in (replay.min_size, options.steps)),
            "" if actions == options.steps else f", {actions:,} actions",
        )


class Prefilling:
    """The episodes with which a run starts, if it starts with any.

    A run that has a checkpoint needs none: the replay is in it.
    """

    def __init__(self, options: AgentOptions, run: RunDirectory):
        """Reads and checks the dataset of a run that needs it.

        Args:
          options: the options of the run.
          run: the run.

        Raises:
          UsageError: if there is no such dataset, it does not fit the environment, or it has too
            few episodes for the shards.
        """
        self._options = options
        self._run = run
        self._dataset: EpisodeDataset | None = None
        # The newest checkpoint may be damaged, which is handled later, under the run's lock.
        if options.dataset is not None and Checkpointer(run.checkpoints).is_empty:
            self._dataset = open_dataset(options.dataset, options.task)
            self._summary = self._dataset.check()
            if options.online_fraction < 1:  # The learner would wait for a shard without episodes.
                most, shards = len(self._summary.returns), options.replay_shards
                expected = f"at most {most}, the number of episodes of --prefill"
                check_option(shards <= most, "replay_shards", expected, shards)

    def fill(self, agent: Agent, num_replicas: int) -> None:
        """Writes the tables with which the replay servers start, and prints a line.

        To be called only for a run without a checkpoint.

        Args:
          agent: the agent.
          num_replicas: the number of the learner's replicas.

        Raises:
          UsageError: see `agents.datasets.prefill.fill`.
        """
        options, path = self._options, self._run.path
        if options.dataset is None:
            return
        assert self._dataset is not None, "the checkpoints were deleted while the run started"
        limit = prefill.as_if_sampled if options.offline is None else prefill.unlimited
        if options.deterministic:
            held = prefill.fill_local(agent, self._dataset, options.seed, path)
        else:
            shards, fraction = options.replay_shards, options.online_fraction
            tables = functools.partial(agent.make_tables, num_replicas, shards, fraction)
            held = prefill.fill(agent, tables, self._dataset, shards, path, limit)
        how = "prefill" if options.offline is None else "offline"
        print(f"{how} {self._dataset.name}: {self._summary}; {held:,} transitions", flush=True)
        if self._summary.lack:
            _LOG.warning("%s: %s", self._dataset.name, self._summary.lack)

    def close(self) -> None:
        """Deletes the tables once there is a checkpoint."""
        if not Checkpointer(self._run.checkpoints).is_empty:
            prefill.discard(self._run.path)
