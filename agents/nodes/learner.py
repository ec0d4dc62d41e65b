"""The learner node: trains while the table has enough items, serves weights, writes checkpoints.

Several of these nodes can form one replicator: all of them train, and the first one serves the
weights, reports and writes checkpoints.
"""

import contextlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import reverb
import tensorflow as tf

import launchpad as lp
import rl_replicator as rr
from agents.agent import Agent, AgentLearner
from agents.nodes.counter import Counter
from agents.nodes.run_plan import RunPlan
from agents.nodes.saver import SECONDS_BETWEEN_TRIES, Saver
from agents.nodes.timing import TOTAL, StoppedError, Timing, WaitLog
from agents.replay.table import TABLE
from agents.replay.transitions import transitions_per_item
from rl_replicator.errors import WORKER_LOST_STATUS
from rl_replicator.runs.profiler import StepProfiler
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")

_SECONDS_BETWEEN_POLLS = 0.1
_SECONDS_BETWEEN_REPORTS = 1.0
# How long a step may wait for items once no more will be inserted.
_SECONDS_TO_STARVE = 1.5
_SECONDS_FOR_INFO = 2
# How long after a stop a replay that does not respond is asked again to save its table.
_SECONDS_TO_RECONNECT = 4.0
_SECONDS_BETWEEN_CALLS = 0.5


@contextlib.contextmanager
def _ended_by_a_loss() -> Iterator[None]:
    """Ends the process if another worker is lost: its TensorFlow cannot recover from that."""
    try:
        yield
    except rr.WorkerLost as loss:
        _restart_group(str(loss))


def _restart_group(why: str) -> NoReturn:
    """Ends the process in such a way that all learners of the run restart."""
    _LOG.warning("%s", why)
    sys.stdout.flush()
    os._exit(WORKER_LOST_STATUS)


class LearnerNode:
    """Trains until the actors have taken all environment steps."""

    @_ended_by_a_loss()
    def __init__(
        self,
        agent: Agent,
        make_replicator: Callable[[], rr.Replicator],
        plan: RunPlan,
        replays: Sequence[reverb.Client],
        counter: Counter,
    ):
        """Builds the learner, in the node, and restores it if there is a checkpoint.

        Args:
          agent: the agent.
          make_replicator: called in the node, before TensorFlow is used.
          plan: the run's seed, length, directory and checkpoint interval.
          replays: clients of the replay servers.
          counter: collects figures and provides the progress of the run.
        """
        run = RunDirectory(plan.run_dir)
        run.check_visible()
        replicator = make_replicator()
        self._is_chief = replicator.is_chief
        self._has_partners = replicator.num_processes > 1
        tf.random.set_seed(plan.seed)
        self._replays = replays
        self._counter = counter
        self._total_steps = plan.total_steps
        self._last_step = math.inf if plan.num_actors else plan.total_steps
        self._is_evaluated = plan.is_evaluated
        self._learner: AgentLearner = agent.make_learner(
            replicator,
            [replay.server_address for replay in replays],
            plan.learner_steps(agent),
            plan.online_fraction,
        )
        self._profiler = StepProfiler(plan.profile_steps if self._is_chief else None, run.path)
        self._saver = Saver(
            run, plan.keep_checkpoints, self._learner, replays, counter, plan.checkpoint_seconds
        )
        self._saver.restore()
        self._timing = Timing()
        self._num_polls = self._num_starved = 0
        self._poll_at = self._report_at = 0.0
        self._reported_steps, self._moved_at = -1, 0.0
        self._is_trained = self._has_rows = self._is_timed = self._steps_done = False

    def get_variables(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Returns the weights after the learner's last call, by path."""
        return self._learner.get_variables(names)

    def run(self) -> None:
        """Trains and saves checkpoints; the last one holds the trained learner."""
        self._stop = lp.stop_event()
        self._waiting = WaitLog("the learner", self._missing_rows, self._stop)
        try:
            with _ended_by_a_loss():
                # A save in the background is completed even if another worker is lost.
                with self._saver.completed():
                    self._train()
                    while self._is_chief and not self._save_last():
                        # A restarted counter resumes from the steps of the newest checkpoint, and
                        # lets the actors take the later ones again.
                        if self._has_partners:  # The others would have to train on, too.
                            _restart_group("the counter has lost steps: all learners restart")
                        self._train()
                while not self._stop.wait(_SECONDS_BETWEEN_REPORTS):
                    # Repeatedly: a restarted counter has no record of either.
                    self._report()
                    if self._is_chief:
                        self._counter.learner_done()
        finally:
            self._learner.close()

    def _train(self) -> None:
        """Takes steps until no rows will come, or the program stops."""
        self._steps_done = self._counter.progress().steps_done  # A run stopped after its last step.
        self._is_trained = self._has_rows = False
        try:
            self._wait_for_first_rows()
            self._has_rows = True
            self._timing.take(**self._learner.seconds)
            while not self._is_over:
                self._profiler.reach(self._learner.num_steps)
                with self._timing.part("step"):
                    self._learner.step(self._poll)
                self._poll()
                if self._is_chief:
                    with self._timing.part("save"):
                        self._saver.tick()
            while self._has_partners:
                self._learner.cancel()  # All workers stop at the same step, which ends this loop.
                self._learner.step()
        except (StoppedError, rr.StepCancelled):
            # No actor inserts rows any more. Some steps of the cancelled call may have been done.
            self._learner.refresh()
        finally:
            self._is_trained = True
            self._profiler.close()

    @property
    def _is_over(self) -> bool:
        """Whether no actor will insert rows, or, without actors, all learner steps are taken."""
        is_last = self._learner.num_steps >= self._last_step
        return is_last or self._steps_done or self._stop.is_set()

    def _poll(self) -> None:
        """Notes ten times a second whether the input is empty, and reports once a second."""
        now = time.monotonic()
        if now < self._poll_at:
            return
        self._poll_at = now + _SECONDS_BETWEEN_POLLS
        self._num_polls += 1
        self._num_starved += self._learner.starved()
        if now >= self._report_at:
            self._report()

    def _report(self) -> None:
        """Reports to the counter; cancels a step that will get no more rows."""
        now, steps = time.monotonic(), self._learner.num_steps
        self._report_at = now + _SECONDS_BETWEEN_REPORTS
        starved = self._num_starved / max(self._num_polls, 1)
        # A learner that saves, or whose steps take long, makes no progress either, but does not
        # wait.
        is_waiting = self._num_polls > 0 and self._num_starved == self._num_polls
        self._num_polls = self._num_starved = 0
        moved = steps != self._reported_steps
        if moved or not self._has_rows:  # The wait for the first rows has its own log.
            self._reported_steps, self._moved_at = steps, now
        if self._is_chief:
            self._report_time(starved, moved)
            metrics = self._learner.metrics() if moved else {}
            progress = self._counter.report_learner(steps, starved, metrics)
        else:
            progress = self._counter.progress()
        self._steps_done = progress.steps_done
        waited = now - self._moved_at
        if self._is_trained or not self._has_rows:
            return
        if self._is_over:
            # The worker without rows may be another one.
            if (is_waiting or self._has_partners) and waited > _SECONDS_TO_STARVE:
                self._learner.cancel()
        elif is_waiting:
            with contextlib.suppress(StoppedError):  # The program has just stopped.
                self._waiting.tick(waited)

    def _wait_for_first_rows(self) -> None:
        """Waits, interruptibly, until every table has enough items to be sampled.

        Saves the rows that there are meanwhile. Logs nothing as long as their number grows.
        """
        grown_at, num_items = time.monotonic(), -1
        while not self._steps_done:
            self._poll()
            tables = self._table_infos()
            if tables and not any(
                table.current_size < table.rate_limiter_info.min_size_to_sample for table in tables
            ):
                return
            if (found := sum(table.current_size for table in tables)) != num_items:
                grown_at, num_items = time.monotonic(), found
            self._waiting.tick(time.monotonic() - grown_at)
            if self._is_chief and num_items > 0:
                self._saver.tick()
            time.sleep(0.05)

    def _table_infos(self) -> list[Any]:
        """Returns Reverb's description of each table; [] while a server does not respond."""
        try:
            return [
                replay.server_info(timeout=_SECONDS_FOR_INFO)[TABLE] for replay in self._replays
            ]
        except (reverb.errors.ReverbError, RuntimeError):
            # Only a timeout has its own class. A server that is killed resets the connection.
            return []

    def _missing_rows(self) -> str:
        tables = self._table_infos()
        if not tables:
            return "a replay that answers; it is starting"
        info = min(tables, key=lambda table: table.rate_limiter_info.insert_stats.completed)
        limiter, length = info.rate_limiter_info, transitions_per_item(info.signature)
        return (
            f"rows: the table holds {length * info.current_size}, sampling starts at "
            f"{length * limiter.min_size_to_sample}; {length * limiter.sample_stats.completed} "
            f"sampled of {length * limiter.insert_stats.completed} inserted (allowed: "
            f"{limiter.samples_per_insert:g} samples per insert); the actors are behind"
        )

    def _report_time(self, starved: float, moved: bool) -> None:
        """Reports how the learner has spent its time since the last report, if it trains.

        Args:
          starved: share of that time in which its input was empty.
          moved: whether it has taken steps: the first call, which compiles the step, and the wait
            for the first rows are not timed, nor is what follows training.
        """
        grown = self._timing.take(**self._learner.seconds)
        if not self._has_rows or self._is_trained or not (moved or self._is_timed):
            return
        self._is_timed = True
        grown = {"step": 0.0, "save": 0.0, **grown}
        others = sum(grown[part] for part in self._learner.seconds)
        grown["wait"] = min(starved * grown[TOTAL], max(grown["step"] - others, 0.0))
        grown["step"] -= others + grown["wait"]
        self._counter.add_time("learner", grown)

    def _save_last(self) -> bool:
        """Saves the trained learner, however long the replay takes to restart.

        Returns:
          False if the counter has fewer environment steps than the run is to have.
        """
        self._report()  # Without actors, the last learner step is the last of the run.
        give_up_at = math.inf
        while not self._saver.save_last() and time.monotonic() < give_up_at:
            if self._stop.wait(SECONDS_BETWEEN_TRIES):
                # Calls to a replay that has just been restarted fail until gRPC connects again.
                give_up_at = min(give_up_at, time.monotonic() + _SECONDS_TO_RECONNECT)
                time.sleep(_SECONDS_BETWEEN_CALLS)
        if self._stop.is_set():
            return True
        if self._saver.saved_environment_steps < self._total_steps:
            return False
        self._counter.learner_done()
        if not self._is_evaluated:  # Otherwise, the evaluator ends the program.
            lp.stop()
        return True
