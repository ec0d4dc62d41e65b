"""The node of a deterministic run: actor, if any, learner and evaluator in one loop."""

import abc
import contextlib
import time
from typing import Any

import numpy as np
import tensorflow as tf

import launchpad as lp
import rl_replicator as rr
from agents.agent import Agent, ExplorationContext
from agents.deterministic.episode import SavedEpisode, memory_part
from agents.learning.weights import WeightsPart
from agents.nodes.counter import Counter, Episode
from agents.nodes.environment_watch import EnvironmentWatch
from agents.nodes.evaluator import EvaluatorNode
from agents.nodes.run_plan import RunPlan
from agents.nodes.saver import finite_state, mark_last_step
from agents.replay import local
from agents.replay.checkpoint import prefilled
from rl_replicator.checkpoints import Checkpointer, CheckpointInfo
from rl_replicator.checkpoints.parts import JsonPart, JsonValue, TrackablePart
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.step import random_ops

_SECONDS_BETWEEN_REPORTS = 1.0
# Environment steps between two reports of the learner. Metrics are on a grid of steps, not of
# seconds, so that equal runs record the same.
_STEPS_PER_METRICS = 500
# Saving takes at most a twentieth of the time.
_SAVE_SHARE = 20.0
_STEP_REMEDY = (
    "use rl_replicator.randomness or tf.random.stateless_* (or "
    "tf.nn.experimental.stateless_dropout, instead of Keras' Dropout) with a seed that counts "
    "steps, such as StepSeeds"
)


class TurnsNode(abc.ABC):
    """Does everything in turn, in one loop.

    Nothing depends on time or threads: two runs of the same settings on the same machine end with
    the same weights, bit for bit, and so does a run that was killed and continued.
    """

    _stride = 1
    """The steps of the run that `_step` takes."""

    def __init__(self, agent: Agent, plan: RunPlan, counter: Counter):
        """Builds everything, and restores it if there is a checkpoint.

        Args:
          agent: the agent.
          plan: the run; it has one actor of one environment, or none.
          counter: writes the metrics.

        Raises:
          CheckpointError: if the environment does not repeat the saved episode.
          ConfigError: if the learner's step or the policy draws random numbers that a continued run
            would not draw again.
        """
        run = RunDirectory(plan.run_dir)
        run.check_visible()
        tf.config.experimental.enable_op_determinism()
        tf.random.set_seed(plan.seed)
        self._plan, self._counter = plan, counter
        replicator = rr.make(plan.replicas.name)
        (table,) = agent.make_tables(replicator.num_replicas)
        self._replay = local.make(table.info, plan.seed)
        with random_ops.refused("a step", _STEP_REMEDY):
            self._learner = agent.make_local_learner(
                replicator, self._replay, plan.learner_steps(agent)
            )
        self._steps = counter.environment_steps()
        with contextlib.ExitStack() as opened:
            self._open(agent, opened)
            self._evaluator = (
                EvaluatorNode(agent, plan, self._learner, counter) if plan.is_evaluated else None
            )
            self._checkpointer = Checkpointer(run.checkpoints, plan.keep_checkpoints)
            self._unreported = 0
            self._saved_at_step = -1
            self._restored_metrics: dict[str, float] = {}
            self._save_at = time.monotonic() + plan.checkpoint_seconds
            self._report_at = 0.0
            found = self._checkpointer.newest_intact()
            if found is not None:
                self._restore(found)
            opened.callback(self._learner.close)
            opened.callback(self._replay.close)
            self._opened = opened.pop_all()

    @abc.abstractmethod
    def _open(self, agent: Agent, opened: contextlib.ExitStack) -> None:
        """Makes what the steps come from."""

    @abc.abstractmethod
    def _step(self) -> None:
        """Takes a step of the run."""

    @abc.abstractmethod
    def _report(self, episodes: list[Episode]) -> None:
        """Tells the counter how many steps were taken."""

    @abc.abstractmethod
    def _own_parts(self) -> dict[str, Any]:
        """Returns what a checkpoint holds besides learner and replay."""

    def run(self) -> None:
        """Trains until all steps are taken, or the program stops."""
        with self._opened:
            self._evaluate_if_due()  # The run may have been stopped before it.
            while self._steps < self._plan.total_steps and not lp.stop_event().is_set():
                self._step()
                if time.monotonic() >= self._save_at:
                    self._save()
            self._save()
            mark_last_step(self._plan.run_dir)
            if not lp.stop_event().is_set():
                self._counter.actor_done(0)
                self._counter.learner_done()
                if self._evaluator is not None:
                    self._evaluator.evaluate(
                        self._plan.total_steps, self._plan.evaluation.last_episodes
                    )
                lp.stop()

    def _report_if_due(self, episodes: list[Episode]) -> None:
        has_metrics = self._steps % _STEPS_PER_METRICS < self._stride
        if episodes or has_metrics or time.monotonic() >= self._report_at:
            self._report(episodes)
        if has_metrics:
            self._counter.report_learner(self._learner.num_steps, 0.0, self._metrics())

    def _evaluate_if_due(self) -> None:
        """Evaluates the policy if an evaluation is due, unless it was done before a stop.

        An untrained policy is not evaluated.
        """
        if self._evaluator is None:
            return
        is_due = self._steps % self._plan.evaluation.every < self._stride
        is_due = is_due and self._learner.num_steps > 0
        if is_due and 0 < self._steps < self._plan.total_steps:
            self._report([])
            if self._counter.progress().evaluation_step < self._steps:
                self._evaluator.evaluate(self._steps, self._plan.evaluation.episodes)

    def _metrics(self) -> dict[str, float]:
        """Returns the metrics of the learner's last call, which may be one before a restore."""
        return self._learner.metrics() or self._restored_metrics

    def _save(self) -> None:
        """Saves everything that the run depends on.

        Raises:
          Diverged: if a variable of the learner holds NaN or infinity.
          CheckpointError: if the memory of the exploration could not be read back.
        """
        if self._saved_at_step == self._steps:
            return
        self._report([])
        started = time.monotonic()
        steps = self._learner.num_steps
        progress = {
            **self._counter.snapshot(),
            "learner_steps": steps,
            "learner_metrics": self._metrics(),
        }
        self._checkpointer.save(
            steps,
            {
                **self._parts(),
                "learner": finite_state(self._learner, self._checkpointer),
                "weights": WeightsPart(self._learner.get_variables(self._learner.network_names)),
                "progress": JsonValue(progress),
            },
        )
        self._saved_at_step = self._steps
        now = time.monotonic()
        pause = max(self._plan.checkpoint_seconds, _SAVE_SHARE * (now - started))
        self._save_at = now + pause

    def _restore(self, checkpoint: CheckpointInfo) -> None:
        progress: dict[str, Any] = {}
        self._checkpointer.restore(
            {**self._parts(), "progress": JsonPart(dict, progress.update)}, checkpoint
        )
        self._restored_metrics = progress.get("learner_metrics", {})
        self._learner.refresh()
        self._saved_at_step = self._steps

    def _parts(self) -> dict[str, Any]:
        return {
            "learner": TrackablePart(**self._learner.trackables()),
            **self._own_parts(),
            "replay": self._replay,  # Replaces what a repeated episode has inserted.
        }


class DeterministicNode(TurnsNode):
    """Takes environment steps and learner steps in turn, at the exact ratio of the replay.

    Actors always have the learner's newest weights.
    """

    def _open(self, agent: Agent, opened: contextlib.ExitStack) -> None:
        """Makes what the steps come from: an actor in an environment."""
        self._stride = self._plan.task.action_repeat
        seeds = np.random.SeedSequence([self._plan.seed, 0]).generate_state(2)
        environment_seed, noise_seed = map(int, seeds)
        noise = np.random.default_rng(noise_seed)
        exploration = ExplorationContext(noise, lambda: self._steps)
        self._memory = exploration.memory
        with random_ops.refused("a policy", "draw them in make_exploration, from context.random"):
            self._adder = agent.make_adder(self._replay, lambda seconds: None)
            self._actor = agent.make_actor(self._learner, [self._adder], [exploration])
        watch = opened.enter_context(EnvironmentWatch("actor 0", self._plan))
        environment = opened.enter_context(watch.make(environment_seed))
        self._episode = SavedEpisode(environment, self._actor, noise)

    def _step(self) -> None:
        """Takes one action, and all learner steps that it makes due."""
        timestep = self._episode.step()
        self._steps += self._stride
        self._unreported += self._stride
        episodes = []
        if timestep.last():
            episode = self._episode
            length = episode.length * self._stride
            episodes.append(Episode(0, episode.episode_return, length))
        if self._replay.is_call_due():
            while self._replay.is_call_due():
                self._replay.feed()
                self._learner.step()
            self._actor.update()
        self._report_if_due(episodes)
        self._evaluate_if_due()

    def _report(self, episodes: list[Episode]) -> None:
        self._counter.lease(0, self._unreported, 0.0, episodes)
        self._unreported = 0
        self._report_at = time.monotonic() + _SECONDS_BETWEEN_REPORTS

    def _restore(self, checkpoint: CheckpointInfo) -> None:
        super()._restore(checkpoint)
        self._actor.update()

    def _own_parts(self) -> dict[str, Any]:
        return {
            "episode": self._episode,
            "exploration": memory_part(self._memory),
            "adder": JsonPart(self._adder.pending, self._adder.set_pending),  # After the episode.
        }


class OfflineNode(TurnsNode):
    """Takes learner steps on recorded transitions; they are the steps of the run."""

    def _open(self, agent: Agent, opened: contextlib.ExitStack) -> None:
        self._stride = self._replay.steps_per_call
        folder = prefilled(self._plan.run_dir) / "0"
        if folder.exists():
            self._replay.restore(folder)

    def _step(self) -> None:
        self._replay.feed()
        self._learner.step()
        self._steps = min(self._learner.num_steps, self._plan.total_steps)
        self._report_if_due([])
        self._evaluate_if_due()

    def _report(self, episodes: list[Episode]) -> None:
        self._counter.report_learner(self._learner.num_steps, 0.0, {})
        self._report_at = time.monotonic() + _SECONDS_BETWEEN_REPORTS

    def _own_parts(self) -> dict[str, Any]:
        return {}
