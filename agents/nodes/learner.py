"""The learner node: trains while the table has enough items, serves weights, writes checkpoints.

Several of these nodes can form one replicator: all of them train, and the first one serves the
weights, reports and writes checkpoints.
"""

import contextlib
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
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
from agents.nodes.stopwatch import TOTAL, Stopwatch
from agents.nodes.wait_log import StoppedError, WaitLog
from agents.replay.table import TABLE
from agents.replay.transitions import transitions_per_item
from rl_replicator.errors import WORKER_LOST_STATUS
from rl_replicator.runs.profiler import StepProfiler
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")

# The learner is polled ten times a second and reports once a second.
_POLL_SECONDS = 0.1
_POLLS_PER_REPORT = 10
_SECONDS_BETWEEN_NOTES = 1.0
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
        self._learner: AgentLearner = agent.make_learner(
            replicator,
            [replay.server_address for replay in replays],
            plan.task.agent_steps(plan.total_steps),
        )
        self._profiler = StepProfiler(plan.profile_steps if self._is_chief else None, run.path)
        self._saver = Saver(
            run, plan.keep_checkpoints, self._learner, replays, counter, plan.checkpoint_seconds
        )
        self._saver.restore()
        # The first call, which compiles the step, and the wait for the first rows are not timed.
        self._is_building = True
        self._steps_at_start = self._learner.num_steps
        self._stopwatch = Stopwatch()
        self._stopwatch.attach(self._learner, {"step": "step"})
        self._stopwatch.attach(self._saver, {"begin": "save", "begin_learner": "save"})
        self._stopwatch.start(**self._learner.seconds)
        self._has_first_rows = threading.Event()
        self._trained = threading.Event()
        self._no_more_rows = threading.Event()
        self._run_over = threading.Event()

    def get_variables(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Returns the weights after the learner's last call, by path."""
        return self._learner.get_variables(names)

    def run(self) -> None:
        """Trains and saves checkpoints; the last one holds the trained learner."""
        # Before another thread starts: its program could not be determined if several run in this
        # process.
        self._stop = lp.stop_event()
        with futures.ThreadPoolExecutor(1, "learner-report") as executor:
            report = executor.submit(self._report)
            try:
                with _ended_by_a_loss():
                    # A save in the background is completed even if another worker is lost.
                    with self._saver:
                        self._train(report)
                        while self._is_chief and not self._save_last():
                            # A restarted counter resumes from the steps of the newest checkpoint,
                            # and lets the actors take the later ones again.
                            if self._has_partners:  # The others would have to train on, too.
                                _restart_group("the counter has lost steps: all learners restart")
                            self._no_more_rows.clear()
                            self._has_first_rows.clear()
                            self._trained.clear()
                            self._train(report)
                    while not self._stop.wait(_SECONDS_BETWEEN_NOTES):
                        # Repeatedly: a restarted counter has no record of it.
                        if self._is_chief:
                            self._counter.learner_done()
            finally:
                self._run_over.set()
                self._learner.close()
            report.result()

    def _train(self, report: futures.Future) -> None:
        try:
            if self._counter.progress().steps_done:  # The run was stopped after its last step.
                self._no_more_rows.set()
            self._wait_for_first_rows()
            self._has_first_rows.set()
            while not (self._no_more_rows.is_set() or self._stop.is_set()):
                self._profiler.reach(self._learner.num_steps)
                self._learner.step()
                if report.done():
                    report.result()  # Raises: only an error ends it early.
                if self._is_chief:
                    self._saver.tick()
            while self._has_partners:
                self._learner.cancel()  # All workers stop at the same step, which ends this loop.
                self._learner.step()
        except (StoppedError, rr.StepCancelled):
            # No actor inserts rows any more. Some steps of the cancelled call may have been done.
            self._learner.refresh()
        finally:
            self._trained.set()
            self._profiler.close()
        if report.done():
            report.result()

    def _wait_for_first_rows(self) -> None:
        """Waits, interruptibly, until every table has enough items to be sampled.

        Saves the rows that there are meanwhile. Logs nothing as long as their number grows.
        """
        grown_at, num_items = time.monotonic(), -1
        waiting = WaitLog("the learner", self._missing_rows, self._stop)
        while not self._no_more_rows.is_set():
            tables = self._table_infos()
            if tables and not any(map(_lacks_rows, tables)):
                return
            if (found := sum(table.current_size for table in tables)) != num_items:
                grown_at, num_items = time.monotonic(), found
            waited = time.monotonic() - grown_at
            waiting.tick(waited)
            if waited > _SECONDS_TO_STARVE:
                self._tell_starvation(tables)
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

    def _tell_starvation(self, tables: Sequence[Any]) -> None:
        """Reports a wait to the counter, during which actors of another server may wait, too.

        Args:
          tables: the result of `_table_infos`. If it is empty, a server is starting, and actors
            wait for it. Nothing is reported for a single server either: it never blocks actors that
            the learner waits for.
        """
        if len(tables) > 1:
            self._counter.learner_starves()

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

    def _report(self) -> None:
        """Reports to the counter every second, and cancels a step that will get no more items."""
        try:
            self._watch()
        except BaseException:
            self._learner.cancel()  # Otherwise a waiting step would hide the error.
            raise

    def _watch(self) -> None:
        waiting = WaitLog("the learner", self._missing_rows, self._stop)
        last_steps, last_change = -1, time.monotonic()
        while True:
            starved = 0
            for _ in range(_POLLS_PER_REPORT):
                if self._run_over.wait(_POLL_SECONDS):
                    return
                starved += self._learner.starved()
            steps, now = self._learner.num_steps, time.monotonic()
            moved = steps != last_steps
            if moved or not self._has_first_rows.is_set():  # That wait has its own log.
                last_steps, last_change = steps, now
            if self._is_chief:
                self._report_time(starved / _POLLS_PER_REPORT)
                metrics = self._learner.metrics() if moved else {}
                progress = self._counter.report_learner(steps, starved / _POLLS_PER_REPORT, metrics)
            else:
                progress = self._counter.progress()
            if progress.steps_done:
                self._no_more_rows.set()
            # A learner that saves, or whose steps take long, makes no progress either, but does not
            # wait.
            is_waiting = starved == _POLLS_PER_REPORT and not self._trained.is_set()
            if progress.steps_done or self._stop.is_set():
                # The worker without items may be another one.
                may_starve = is_waiting or (self._has_partners and not self._trained.is_set())
                if may_starve and now - last_change > _SECONDS_TO_STARVE:
                    self._learner.cancel()
            elif is_waiting and self._has_first_rows.is_set():
                with contextlib.suppress(StoppedError):  # The program has just stopped.
                    waiting.tick(now - last_change)
                if now - last_change > _SECONDS_TO_STARVE:
                    self._tell_starvation(self._table_infos())

    def _report_time(self, starved: float) -> None:
        """Reports how the learner has spent its time since the last report, if it trains.

        Args:
          starved: share of that time in which its input was empty.
        """
        grown = self._stopwatch.take(**self._learner.seconds)
        if self._is_building:
            self._is_building = self._learner.num_steps == self._steps_at_start
            return
        if self._trained.is_set():  # Later time, such as the last evaluation, is not its own.
            return
        others = sum(grown[part] for part in self._learner.seconds)
        grown["wait"] = min(starved * grown[TOTAL], max(grown["step"] - others, 0.0))
        grown["step"] -= others + grown["wait"]
        self._counter.add_time("learner", grown)

    def _save_last(self) -> bool:
        """Saves the trained learner, however long the replay takes to restart.

        Returns:
          False if the counter has fewer environment steps than the run is to have.
        """
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
        return True


def _lacks_rows(table: Any) -> bool:
    """Whether a table, as Reverb describes it, has too few items to be sampled."""
    return table.current_size < table.rate_limiter_info.min_size_to_sample
