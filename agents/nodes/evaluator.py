"""The evaluator node: judges the policy without noise, and ends the run with a last judgement."""

import launchpad as lp
from agents.agent import Agent, VariableSource
from agents.environment_loop import episode_return
from agents.nodes.counter import Counter
from agents.nodes.observation_images import strip
from agents.runs.evaluation import EvaluationSchedule, evaluation_seed
from agents.task import Task

_SECONDS_BETWEEN_LOOKS = 0.25


class EvaluatorNode:
    """Evaluates as the run proceeds; stops the program after the last evaluation."""

    def __init__(
        self,
        agent: Agent,
        task: Task,
        seed: int,
        schedule: EvaluationSchedule,
        source: VariableSource,
        counter: Counter,
    ):
        """Makes the judged policy, here in the node.

        Args:
          agent: factories.
          task: to act in.
          seed: of the run.
          schedule: when to evaluate.
          source: of the weights.
          counter: of the run.
        """
        self._task = task
        self._seed = seed
        self._schedule = schedule
        self._counter = counter
        self._actor = agent.make_evaluator(source)

    def run(self) -> None:
        """Evaluates every so many environment steps, and once more when the learner is done."""
        progress = self._counter.progress()
        due = progress.evaluation_step + self._schedule.every
        while not lp.wait_for_stop(_SECONDS_BETWEEN_LOOKS):
            progress = self._counter.progress()
            if progress.learner_done:
                self._evaluate(progress.total_steps, self._schedule.last_episodes)
                lp.stop()
                return
            if progress.environment_steps >= due and not progress.steps_done:
                self._evaluate(progress.environment_steps, self._schedule.episodes)
                due = (
                    progress.environment_steps // self._schedule.every + 1
                ) * self._schedule.every

    def _evaluate(self, environment_steps: int, episodes: int) -> None:
        self._actor.update(wait=True)
        seed = evaluation_seed(self._seed, environment_steps)
        environment = self._task.make(seed=seed)
        returns = []
        for _ in range(episodes):
            total = episode_return(environment, self._actor, lp.stop_event().is_set)
            if total is None:
                return
            returns.append(total)
        picture = strip(self._actor.seen)
        self._counter.record_evaluation(environment_steps, returns, picture)
