"""The evaluator node: evaluates the policy without exploration, and ends the run."""

from collections.abc import Mapping, Sequence

import numpy as np

import launchpad as lp
from agents.agent import Agent, VariableSource
from agents.environment_loop import evaluation_episode
from agents.learning.weights import EVERYTHING, LEARNER_STEPS, select
from agents.nodes import evaluation_figures
from agents.nodes.counter import Counter
from agents.nodes.environment_watch import EnvironmentWatch, make_environment
from agents.nodes.observation_images import strip
from agents.nodes.run_plan import RunPlan, evaluation_seed

_POLL_SECONDS = 0.25


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
        played = []
        with make_environment("the evaluator", self._plan, seed) as environment:
            with EnvironmentWatch("the evaluator", self._plan, [environment]):
                for _ in range(episodes):
                    episode = evaluation_episode(
                        environment, self._actor, self._max_actions, lp.stop_event().is_set
                    )
                    if episode is None:
                        return
                    played.append(episode)
            reward_spec = environment.reward_spec()
        figures = evaluation_figures.figures(played, reward_spec, self._discount)
        figures["learner_steps"] = learner_steps
        picture = strip(getattr(self._actor, "last_observation", None))
        self._counter.record_evaluation(environment_steps, figures, picture, self._source.arrays)


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
