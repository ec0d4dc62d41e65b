"""The options of a run, whatever agent it trains."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agents.nodes.run_plan import EvaluationSchedule
from environments import PixelConfig
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.profiler import parse_span

if TYPE_CHECKING:
    from agents.task import Task

# What `--deterministic` supports.
_DETERMINISTIC = {
    "actors": 1,
    "envs_per_actor": 1,
    "caches": 0,
    "replay_shards": 1,
    "launch": "threads",
    "pixels": False,
    "profile_steps": None,
    "prefill": None,
}
# What `--offline` supports: there are no actors, and all data is in one table.
_OFFLINE = {
    "actors": 1,
    "envs_per_actor": 1,
    "env_engine": "dm_control",
    "caches": 0,
    "replay_shards": 1,
    "pixels": False,
    "prefill": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of a run that trains an agent from the state of its environment."""

    preset: str = "default"
    """Initial values of `--agent.*`: `default`; for D4PG from state `paper`, as it was published,
    `simba` or `xqc`; for D4PG and DQN from state `recurrent`; for TD3 from pixels `drq_v2`
    (docs/agents.md)."""
    env: str = ""
    """Task: `domain:task` of the dm_control suite, `gym:ID`, `dm:manipulation/TASK`,
    `dm:locomotion/TASK`, or `package.module:function`. With `--offline`, the environment of the
    evaluations; without it, nothing is evaluated."""
    env_options: str = ""
    """Options for the constructor of `gym:ID`, as a JSON object, such as '{"g": 9.81}'. They become
    part of the task's name: `gym:Pendulum-v1{"g": 9.81}`."""
    wrap: tuple[str, ...] = ()
    """Wrappers `package.module:function` around the environment, the innermost first."""
    time_limit: int | None = None
    """Environment steps after which an episode is truncated. Default: the environment's own."""
    action_repeat: int | None = None
    """Environment steps for which each action is repeated, while rewards are summed. Default: 1;
    with `--pixels` 8 for cartpole, 4 for ball_in_cup, cheetah and reacher, 2 for all others."""
    env_timeout: float = 300.0
    """Seconds after which a step or reset of an environment that has not returned counts as stuck.
    Its node is restarted; with `--launch threads`, the run is saved and ends."""
    steps: int = 120_000
    """Total number of environment steps (frames of the simulator) of all actors, `--action-repeat`
    for each action. With `--offline`, learner steps, in whole calls of `--agent.steps-per-call`; so
    are all other steps in options, metrics and results."""
    seed: int = 1
    """Seed of environments, noise, weights and evaluations."""
    actors: int = 1
    """Number of actors, which take steps independently, each in its own environments."""
    envs_per_actor: int = 1
    """Environments of each actor; one call of the policy computes the actions for all of them."""
    env_engine: Literal["dm_control", "envpool"] = "dm_control"
    """How actors step their environments: `dm_control`, one after the other (also for environments
    of other libraries); `envpool`, all at once in C++ threads (dm_control suite, from state)."""
    replicas: str = "1"
    """Learner replicas: a number of devices, `multi_worker:N` for N learner processes, or another
    string of `rl_replicator.make`."""
    learner_gpus: int | None = None
    """GPUs of each learner process; not with `--launch threads`. Default: the GPUs of this machine,
    divided evenly."""
    caches: int = 0
    """Nodes that forward the learner's weights to the actors, for runs with tens of actors."""
    replay_shards: int = 1
    """Replay servers, each with an equal part of the transitions, for more actors than one server
    can handle. Their number must divide the number of all environments."""
    prefill: str | None = None
    """Minari dataset (ID or folder) whose episodes fill the replay before the actors start. They
    count towards `--agent.replay.min-size`, but do not trigger learner steps (docs/data.md)."""
    online_fraction: float = 1.0
    """Share of each batch that comes from the run's own steps; the rest comes from `--prefill`,
    which then has a table of its own (docs/data.md). 1: there is one table."""
    offline: str | None = None
    """Minari dataset (ID or folder) to learn from, without actors (docs/data.md)."""
    launch: Literal["threads", "processes", "ray"] = "threads"
    """Where the nodes run: threads of one process, processes of this machine, or Ray."""
    address: str | None = None
    """Ray cluster to run on, `host:port`. Default: start Ray on this machine."""
    open_ports: bool = False
    """Allow ports that other machines can reach without a password: TensorFlow's port in a learner
    on several machines, see SECURITY.md."""
    deterministic: bool = False
    """Run actor and learner in turn, so that runs with the same settings end with the same weights,
    interrupted or not. Slower; only with one actor, from state, in threads."""
    run_dir: Path | None = None
    """Run directory; an existing run is continued. Default: a new one under `runs/`."""
    resume: bool = False
    """Continue the newest run of the same task, seed and agent under `runs/`."""
    checkpoint_seconds: float = 30.0
    """Seconds between checkpoints (longer if one takes more than a twentieth of that)."""
    track: tuple[str, ...] = ()
    """Trackers for metrics, besides CSV files and TensorBoard: `wandb`, `mlflow`."""
    profile_steps: str | None = None
    """Learner steps to profile for TensorBoard, START:END."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep; the policy with the best evaluation is kept, too."""
    evaluation: EvaluationSchedule = EvaluationSchedule()
    """When to evaluate."""
    video: bool = True
    """Record a video of an episode at the end of the run, which takes some seconds."""
    video_every: int | None = None
    """Environment steps between videos during the run, written to `films/`. Each needs a separate
    process for some seconds. Default: no videos."""
    pixels: bool = False
    """Learn from pixels in place of the state. Adds `--frame.*` and further `--agent.*` options."""
    agent: Any
    """Hyper-parameters: the config of an agent."""

    def __post_init__(self) -> None:
        def check(is_good: bool, name: str, expected: str) -> None:
            check_option(is_good, name, expected, getattr(self, name))

        for name in ("steps", "actors", "envs_per_actor", "keep_checkpoints"):
            check(getattr(self, name) >= 1, name, "at least 1")
        for name in ("video_every", "time_limit", "action_repeat"):
            value = getattr(self, name)
            check(value is None or value >= 1, name, "at least 1")
        for name in ("checkpoint_seconds", "env_timeout"):
            check(getattr(self, name) > 0, name, "more than 0 seconds")
        check(0 <= self.seed < 2**32, "seed", "a number from 0 to 2**32 - 1")
        check(0 <= self.caches <= self.actors, "caches", "0 to one per actor")
        num_environments = self.actors * self.envs_per_actor
        check(
            self.replay_shards >= 1 and num_environments % self.replay_shards == 0,
            "replay_shards",
            f"a divisor of {num_environments}, the number of environments of all actors (each "
            "environment writes to one server)",
        )
        if self.profile_steps is not None:
            parse_span(self.profile_steps)
        is_object = self.env_options.startswith("{") and self.env.startswith("gym:")
        expected = "a JSON object in braces, for an environment gym:ID"
        check(is_object or not self.env_options, "env_options", expected)
        gpus = self.learner_gpus
        check(gpus is None or gpus >= 0, "learner_gpus", "at least 0")
        check_option(
            gpus is None or self.launch != "threads",
            "learner_gpus",
            "--launch processes or ray with it (threads share the GPUs of one process)",
            self.launch,
        )
        is_ray = self.address is None or self.launch == "ray"
        check_option(is_ray, "address", "--launch ray", self.launch)
        if self.deterministic:
            for name, value in _DETERMINISTIC.items():
                check(getattr(self, name) == value, name, f"{value} with --deterministic")
        if self.env_engine == "envpool":
            for name in ("pixels", "wrap", "time_limit", "action_repeat", "deterministic"):
                option = f"--{name.replace('_', '-')}"
                check(not getattr(self, name), "env_engine", f"dm_control with {option}")
        is_named = bool(self.env or self.offline)
        check_option(is_named, "env", "the name of an environment", self.env or None)
        fraction = self.online_fraction
        is_good = fraction == 1 or (0 < fraction < 1 and self.prefill is not None)
        check(is_good, "online_fraction", "1, or a number between 0 and 1 with --prefill")
        if self.offline is not None:
            for name, value in _OFFLINE.items():
                check(getattr(self, name) == value, name, f"{value} with --offline")
        if not self.env:
            for name in ("env_options", "wrap", "time_limit", "action_repeat", "video_every"):
                check(not getattr(self, name), name, "--env with it")
        is_possible = self.prefill is None or not self.pixels
        check_option(is_possible, "prefill", "no --pixels with it", "--pixels")
        if self.pixels != isinstance(self, PixelAgentOptions):
            raise ConfigError(
                "expected --pixels or --no-pixels, got both (in Python, options with pixels=True "
                "are PixelAgentOptions)"
            )

    @property
    def task(self) -> "Task":
        """The environment to learn; without one, the form of the recorded steps."""
        from agents.task import Task

        if not self.env and self.offline is not None:
            from agents.datasets.minari_files import recorded_task

            return recorded_task(self.offline)
        return Task(self._task_name, None, self.wrap, self.time_limit, self.action_repeat)

    @property
    def dataset(self) -> str | None:
        """The dataset with which the run starts, if any."""
        return self.offline or self.prefill

    @property
    def _task_name(self) -> str:
        return self.env + self.env_options

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that identify this run, as plain data for `AgentCommand.restore`."""
        agent = to_plain(self.agent, "agent")
        return {
            "env": self._task_name,
            "seed": self.seed,
            "preset": self.preset,
            "agent": agent,
            "wrap": [*self.wrap],
            "time_limit": self.time_limit,
            "action_repeat": self.task.action_repeat,
            "deterministic": self.deterministic,
            "prefill": self.prefill,
            "online_fraction": self.online_fraction,
            "offline": self.offline,
            "replay_shards": self.replay_shards,  # Each server restores its own items.
        }

    @property
    def score(self) -> Score:
        """The figure that measures how good the run is."""
        counted = "learner steps" if self.offline else None
        return Score(
            "evaluator",
            "episode_return",
            every=self.evaluation.every,
            end=self.steps,
            counted=counted,
        )

    def plain(self) -> dict[str, Any]:
        """Returns all options as plain data, for the config of the run."""
        return to_plain(self)


@dataclasses.dataclass(frozen=True)
class EvaluationOptions:
    """Evaluate a run's newest checkpoint, or its best one, with the deterministic policy."""

    episodes: int = 10
    """Number of episodes."""
    seed: int = 1000
    """Seed of the environment."""
    best: bool = False
    """Use the checkpoint with the best evaluation during training, in place of the newest."""
    out: Path | None = None
    """Film of the first episode, .mp4 or .gif. Default: none."""

    def __post_init__(self) -> None:
        check_option(self.episodes >= 1, "episodes", "at least 1", self.episodes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelAgentOptions(AgentOptions):
    """Options of a run that trains an agent from pixels."""

    pixels: bool = True
    """Learn from pixels in place of the state."""
    frame: PixelConfig = PixelConfig()
    """How frames are rendered."""

    @property
    def task(self) -> "Task":
        """The environment to learn."""
        from agents.task import Task

        surroundings = self.frame, self.wrap, self.time_limit, self.action_repeat
        return Task(self._task_name, *surroundings)

    @property
    def identity(self) -> dict[str, Any]:
        """See `AgentOptions`."""
        return super().identity | {"pixels": to_plain(self.frame)}
