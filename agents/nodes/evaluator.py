"""The evaluator node: evaluates the policy without exploration, and ends the run."""

from collections.abc import Mapping, Sequence

import numpy as np
import tree
from dm_env import specs

import launchpad as lp
from agents.agent import Agent, VariableSource
from agents.environment_loop import EvaluationEpisode, evaluation_episode
from agents.learning.weights import EVERYTHING, LEARNER_STEPS, select
from agents.nodes import starts
from agents.nodes.counter import Counter
from agents.nodes.environment_watch import EnvironmentWatch
from agents.nodes.run_plan import RunPlan, evaluation_seed

# An episode that was cut off has failed if it earned less than this share of the range of its
# possible returns.
_FAILED_BELOW = 0.1
# A return-to-go is complete if what follows a cut-off counts for at most this share.
_NEGLIGIBLE_DISCOUNT = 0.05
_POLL_SECONDS = 0.25


def counted(episodes: float) -> str:
    """Returns a number of episodes with its noun, such as "1 episode"."""
    return "1 episode" if episodes == 1 else f"{episodes:.0f} episodes"


def evaluation_figures(
    episodes: Sequence[EvaluationEpisode], reward_spec: specs.Array, discount: float
) -> dict[str, float]:
    """Computes the figures of an evaluation.

    Args:
      episodes: one or more episodes.
      reward_spec: the reward spec of the environment.
      discount: gamma of the learner.

    Returns:
      By name: mean, lowest, median and highest return, and the number of episodes. If the rewards
      are bounded and the environment terminated none of the episodes, also the share of failed
      episodes: those whose return is in the lowest tenth of the range that the bounds allow for an
      episode of that length. Also the mean discounted return, by gamma and the environment's
      discounts, after the states whose remaining rewards are known, if there are any: all states of
      a terminated episode, else those so early that what follows the cut-off is negligible.
    """
    returns = np.array([episode.rewards.sum() for episode in episodes])
    found = {
        "episode_return": float(returns.mean()),
        "episode_return_min": float(returns.min()),
        "episode_return_median": float(np.median(returns)),
        "episode_return_max": float(returns.max()),
        "episodes": float(len(episodes)),
    }
    low, high = reward_bounds(reward_spec)
    # The bounds of one step bound the return of a whole episode only if the environment doesn't end
    # it: the best return may be a single reward at the goal, or a cost for each step to it.
    cut_off = all(episode.discounts[-1] != 0.0 for episode in episodes)
    if cut_off and np.isfinite([low, high]).all() and low < high:
        lengths = np.array([len(episode.rewards) for episode in episodes])
        share = (returns - low * lengths) / ((high - low) * lengths)
        found["failed_share"] = float(np.mean(share < _FAILED_BELOW))
    after = np.concatenate([returns_to_go(episode, discount) for episode in episodes])
    if after.size:
        found["discounted_return"] = float(after.mean())
    return found


def reward_bounds(reward_spec: specs.Array) -> tuple[float, float]:
    """Returns the lowest and the highest reward; infinite if they are not known."""
    if not isinstance(reward_spec, specs.BoundedArray):
        return -np.inf, np.inf
    return float(np.min(reward_spec.minimum)), float(np.max(reward_spec.maximum))


def returns_to_go(episode: EvaluationEpisode, discount: float) -> np.ndarray:
    """Computes the discounted return after each state whose remaining rewards are known.

    Args:
      episode: an episode of T steps.
      discount: gamma.

    Returns:
      [T] float64 after a termination; else only for the first states, so far from the cut-off that
      what follows it is negligible.
    """
    discounts = discount * episode.discounts
    after = np.zeros(len(episode.rewards) + 1)
    for step in range(len(episode.rewards) - 1, -1, -1):
        after[step] = episode.rewards[step] + discounts[step] * after[step + 1]
    # Weight in each state's return of what follows the last step: zero after a termination.
    remaining = np.cumprod(discounts[::-1])[::-1]
    return after[:-1][remaining <= _NEGLIGIBLE_DISCOUNT]


def frame_strip(observation: np.ndarray | None) -> np.ndarray | None:
    """Returns the frames of an observation side by side, the oldest on the left.

    Args:
      observation: observation of an agent; None if it provides none.

    Returns:
      uint8 [H, W * S, 3] for S stacked frames of shape [H, W, 3 * S], or of grey ones [H, W, S],
      unless S is a multiple of 3, as of which they are coloured; None if the observation is not a
      stack of frames.
    """
    if observation is None or observation.ndim != 3 or observation.dtype != np.uint8:
        return None
    height, width, channels = observation.shape
    if channels % 3:  # Grey.
        observation, channels = np.repeat(observation, 3, axis=-1), 3 * channels
    frames = observation.reshape(height, width, channels // 3, 3)
    return frames.transpose(0, 2, 1, 3).reshape(height, -1, 3)


class EvaluatorNode:
    """Evaluates during the run; stops the program after the last evaluation."""

    def __init__(
        self,
        agent: Agent,
        plan: RunPlan,
        source: VariableSource,
        counter: Counter,
    ):
        """Builds the policy, in the node's own process.

        Args:
          agent: makes the policy.
          plan: its task, its seed, and when to evaluate.
          source: provides the weights.
          counter: provides the progress of the run, and takes the results.
        """
        self._plan = plan
        self._schedule = plan.evaluation
        self._counter = counter
        self._source = _NewestWeights(source)
        self._actor = agent.make_evaluator(self._source)
        self._discount = agent.discount
        self._max_actions = plan.task.agent_steps(plan.evaluation.max_episode_steps)

    def run(self) -> None:
        """Evaluates at the scheduled steps, and at the end, when the learner is done.

        Evaluations that are due before the learner has taken its first step are skipped.
        """
        progress = self._counter.progress()
        evaluated = progress.evaluation_step
        due = self._next_due(evaluated)
        while not lp.wait_for_stop(_POLL_SECONDS):
            progress = self._counter.progress()
            if progress.learner_done:
                self.evaluate(progress.total_steps, self._schedule.last_episodes)
                lp.stop()
                return
            if progress.evaluation_step < evaluated:
                # A restarted counter has removed the rows beyond its checkpoint.
                evaluated = progress.evaluation_step
                due = self._next_due(evaluated)
            steps = progress.environment_steps
            if steps >= due:
                due = self._next_due(steps)
                # An untrained policy is not evaluated. The last evaluation takes place when the
                # learner is done, which is later than the last step.
                if progress.learner_steps > 0 and steps < progress.total_steps:
                    self.evaluate(steps, self._schedule.episodes)
                    evaluated = steps

    def _next_due(self, environment_steps: int) -> int:
        return (environment_steps // self._schedule.every + 1) * self._schedule.every

    def evaluate(self, environment_steps: int, episodes: int) -> None:
        """Evaluates the newest weights; records nothing if the program stops meanwhile.

        Args:
          environment_steps: steps of the run so far.
          episodes: number of episodes to play.
        """
        self._actor.update(wait=True)
        learner_steps = self._source.learner_steps
        seed = evaluation_seed(self._plan.seed, environment_steps)
        played, rows = [], []
        watch = EnvironmentWatch("the evaluator", self._plan)
        with watch, watch.make(seed) as environment:
            for _ in range(episodes):
                episode = evaluation_episode(
                    environment, self._actor, self._max_actions, lp.stop_event().is_set
                )
                if episode is None:
                    return
                played.append(episode)
                rows.append(starts.row(episode.episode_return, environment.start()))
            reward_spec = environment.reward_spec()
        figures = evaluation_figures(played, reward_spec, self._discount)
        figures["learner_steps"] = learner_steps
        observation = getattr(self._actor, "last_observation", None)
        picture = frame_strip(tree.flatten(observation)[0])  # Frames precede the state.
        weights = self._source.arrays
        self._counter.record_evaluation(environment_steps, figures, picture, weights, rows)


class _NewestWeights:
    """A `VariableSource` that keeps the newest weights and the number of their learner steps.

    Attributes:
      arrays: the weights of all networks that were fetched last, by path. They include the weights
        with which actors explore, also for the best checkpoint: averaged weights alone do not
        suffice for exploration.
      learner_steps: number of learner steps that produced them.
    """

    def __init__(self, source: VariableSource):
        self._source = source
        self.arrays: dict[str, np.ndarray] = {}
        self.learner_steps = 0

    def get_variables(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Returns the variables of the named networks, by path."""
        arrays = dict(self._source.get_variables([EVERYTHING]))
        (path,) = (path for path in arrays if path.split("/", 1)[0] == LEARNER_STEPS)
        self.learner_steps = int(arrays.pop(path))
        self.arrays = arrays
        return select(arrays, names)
