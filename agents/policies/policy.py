"""The policy of a run, ready to act."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import dm_env
import numpy as np
from acme import core

import environments
from agents.agent import Agent
from agents.learning.weights import WeightsPart
from agents.nodes.run_plan import EvaluationSchedule
from agents.task import Task
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.cli import trainables
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from acme import specs


class AgentSource(Protocol):
    """Makes the agents of a kind, as `agents.runs.command.AgentCommand` does."""

    @property
    def name(self) -> str:
        """The agent's name, as users type it."""
        ...

    def restore(self, identity: "Mapping[str, Any]") -> tuple[Task, Any]:
        """Returns the task and the hyper-parameters of a run."""
        ...

    def make_agent(self, config: Any, environment_spec: "specs.EnvironmentSpec") -> Agent:
        """Makes the agent."""
        ...


@dataclasses.dataclass(frozen=True)
class Policy:
    """A trained policy without exploration.

        policy = agents.load_policy("runs/d4pg/cartpole-swingup-seed1-1")
        environment = policy.make_environment(seed=0)
        timestep = environment.reset()
        policy.reset()
        while not timestep.last():
            timestep = environment.step(policy.act(timestep.observation))

    Attributes:
      task: the environment that it was trained for.
      agent: the agent that was trained.
      actor: the policy as a `core.Actor` for `agents.environment_loop`.
      weights: its weights.
      environment_steps: environment steps of the run at these weights.
      learner_steps: learner steps at these weights.
      max_actions: actions after which the run's evaluations cut off an episode.
    """

    task: Task
    agent: Agent
    actor: core.Actor
    weights: WeightsPart
    environment_steps: int
    learner_steps: int
    max_actions: int

    def act(self, observation: Any) -> np.ndarray:
        """Returns the action for an observation.

        Args:
          observation: an observation of an environment of `make_environment` or `adapt`: [N]
            float32, or a frame [H, W, 3] uint8, or `{"pixels": frame, "vector": [N]}`. Frames are
            stacked here.

        Returns:
          [A] float32 in [-1, 1], or the number of a discrete action: the form in which these
          environments take actions.

        Raises:
          TypeError: if the observation is another nest of arrays, as returned by your own
            environments.
          ValueError: if it has another shape or dtype; vectors may have any real dtype.
        """
        spec = self.agent.environment_spec.observations
        return self.actor.select_action(_checked(observation, spec))

    def reset(self) -> None:
        """Starts an episode: forgets the frames and the memory of the previous one."""
        self.actor.observe_first(dm_env.restart(None))

    def make_environment(
        self, seed: int
    ) -> "environments.Environment | environments.PixelEnvironment":
        """Makes an environment of the task.

        Args:
          seed: seed of everything random in it.
        """
        return self.task.make(seed=seed)

    def adapt(
        self, environment: Any, seed: int = 0
    ) -> "environments.Environment | environments.PixelEnvironment":
        """Makes an environment as `make_environment` does, but from one of your own.

        Around yours are the run's wrappers, its time limit and, from pixels, a renderer of frames
        of the run's size.

        Args:
          environment: a `dm_env.Environment` or a `gymnasium.Env` like that of the run, without
            the run's wrappers.
          seed: seed of the first reset of a `gymnasium.Env`, and of the run's wrappers.

        Raises:
          EnvironmentUsageError: if its specs do not fit, or it cannot be rendered.
        """
        return self.task.adapt(environment, seed)


def load_policy(run_dir: str | os.PathLike, best: bool = False) -> Policy:
    """Loads the policy of a run.

    Args:
      run_dir: directory of a run that trains, or has trained, an agent; `~` is the home directory.
      best: whether to use the checkpoint with the best evaluation, not the newest.

    Raises:
      UsageError: if it is not the directory of such a run, or has no checkpoint.
    """
    run = RunDirectory(Path(os.path.expanduser(run_dir)))
    trainable: Any = trainables.of_run(run.path)
    if not hasattr(trainable, "make_agent"):
        raise UsageError(
            f"expected a run of an agent, got {run.path}, which trains a learner without a policy; "
            "'rl-replicator export' saves its model"
        )
    return restore(run, trainable, best)


def restore(run: RunDirectory, source: AgentSource, best: bool = False) -> Policy:
    """Restores the policy of a run.

    Args:
      run: the run.
      source: the source of the run's kind of agent.
      best: see `load_policy`.

    Raises:
      UsageError: if there is no run or no checkpoint.
    """
    run = RunDirectory(run.path.absolute())  # The environment may change the working directory.
    identity = run.config()["identity"]
    checkpointer = run.checkpointer(best)
    task, config = source.restore(identity)
    agent = source.make_agent(config, task.spec(identity.get("environment")))
    weights = WeightsPart()
    progress: dict[str, Any] = {}
    checkpointer.restore({"weights": weights, "progress": JsonPart(dict, progress.update)})
    return Policy(
        task,
        agent,
        agent.make_evaluator(weights),
        weights,
        int(progress["environment_steps"]),
        int(progress["learner_steps"]),
        max_actions(run, task),
    )


def max_actions(run: RunDirectory, task: Task) -> int:
    """Returns the actions after which the evaluations of a run cut off an episode.

    Args:
      run: the run.
      task: its task.
    """
    evaluation = run.config().get("options", {}).get("evaluation", {})
    most = evaluation.get("max_episode_steps", EvaluationSchedule().max_episode_steps)
    return task.agent_steps(most)


def _checked(observation: Any, spec: Any) -> Any:
    """Returns an observation in the dtypes of its spec; raises as `Policy.act` does."""
    if isinstance(spec, dict):
        given = observation if isinstance(observation, dict) else {}
        return {name: _checked(given.get(name), each) for name, each in spec.items()}
    expected = f"expected one array {list(spec.shape)} of {spec.dtype}"
    remedy = (
        "use policy.make_environment(seed), or policy.adapt(environment) for an environment of "
        "your own"
    )
    if not hasattr(observation, "shape"):
        raise TypeError(f"{expected}, got a {type(observation).__name__}; {remedy}")
    observation = np.asarray(observation)
    # Checked before it is part of a stack. TensorFlow checks no shapes: it would take part of a
    # larger frame for a second observation.
    is_number = spec.dtype.kind == "f" and observation.dtype.kind in "fiub"
    if observation.shape != spec.shape or not (is_number or observation.dtype == spec.dtype):
        got = f"{list(observation.shape)} of {observation.dtype}"
        raise ValueError(f"{expected}, got {got}; {remedy}")
    return observation.astype(spec.dtype, copy=False)
