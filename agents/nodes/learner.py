"""The learner node: trains while the table has enough items, serves weights, writes checkpoints.

Several of these nodes can form one replicator: all of them train, and the first one serves the
weights, reports and writes checkpoints.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

import launchpad as lp
import rl_replicator as rr
from agents.agent import Agent, AgentLearner
from agents.learning.weights import WeightsPart
from agents.nodes.counter import Counter
from agents.nodes.stopwatch import TOTAL, Stopwatch
from agents.nodes.wait_log import StoppedError, WaitLog
from agents.plan.run_plan import RunPlan
from agents.replay.checkpoint import ReplayError, ReplayPart, SameReplayPart, part_name
from agents.replay.table import TABLE
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart, TrackablePart
from rl_replicator.errors import WORKER_LOST_STATUS
from rl_replicator.runs.profiler import StepProfiler
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")

# The learner is polled ten times a second and reports once a second.
_POLL_SECONDS = 0.1
_POLLS_PER_REPORT = 10
# How long a step may wait for items once no more will be inserted.
_SECONDS_TO_STARVE = 1.5
# Ctrl-C ends a program within ten seconds: if the replay takes longer than this to write, the last
# checkpoint links the replay of the one before.
_SECONDS_TO_SAVE_IN_HASTE = 3.0
_SECONDS_FOR_INFO = 2
# A replay that died is restarted; if nothing can be saved for this long, the run fails.
_SECONDS_WITHOUT_REPLAY = 600.0
_SECONDS_BETWEEN_TRIES = 2.0
# A low estimate, which tells a table that is saved in a second from one that takes ten.
_BYTES_PER_SECOND = 1.5e7


class LearnerNode:
    """Trains until the actors have taken all environment steps."""

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
          counter: collects figures and knows how far the run is.
        """
        run = RunDirectory(plan.run_dir)
        run.check_visible()
        replicator = make_replicator()
        self._is_chief = replicator.is_chief
        self._has_partners = replicator.num_processes > 1
        tf.random.set_seed(plan.seed)
        self._replays = replays
        self._counter = counter
        self._checkpoint_seconds = plan.checkpoint_seconds
        self._learner: AgentLearner = agent.make_learner(
            replicator,
            [replay.server_address for replay in replays],
            plan.task.agent_steps(plan.total_steps),
        )
        self._checkpointer = Checkpointer(run.checkpoints, plan.keep_checkpoints)
        if self._checkpointer.latest() is not None:
            self._checkpointer.restore({"learner": TrackablePart(**self._learner.trackables())})
            self._learner.refresh()
        self._profiler = StepProfiler(plan.profile_steps if self._is_chief else None, run.path)
        self._saved: tuple[int, int] | None = None
        self._save_at = 0.0
        self._unsaved_since: float | None = None
        # Seconds that the last save took; at first, estimated from a restored checkpoint.
        latest = self._checkpointer.latest()
        self._save_seconds = latest.num_bytes / _BYTES_PER_SECOND if latest else 0.0
        # The first call, which compiles the step, and the wait for the first rows are not counted.
        self._is_building = True
        self._steps_at_start = self._learner.num_steps
        self._stopwatch = Stopwatch()
        self._stopwatch.attach(self._learner, {"step": "step"})
        self._stopwatch.attach(self, {"_save": "save"})
        self._stopwatch.start(**self._learner.seconds)
        self._trained = threading.Event()
        self._no_more_rows = threading.Event()
        self._run_over = threading.Event()

    def get_variables(self, names: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Returns the weights after the learner's last call, by path."""
        return self._learner.get_variables(names)

    def run(self) -> None:
        """Trains and saves checkpoints; the last one holds the trained learner."""
        with futures.ThreadPoolExecutor(1, "learner-report") as executor:
            report = executor.submit(self._report)
            try:
                self._train(report)
                if self._is_chief:
                    while not self._save() and not lp.wait_for_stop(_SECONDS_BETWEEN_TRIES):
                        pass
                    if not lp.stop_event().is_set():
                        self._counter.learner_done()
                lp.wait_for_stop()
            except rr.WorkerLost as loss:
                # TensorFlow cannot continue in this process: the whole group restarts.
                _LOG.warning("%s", loss)
                sys.stdout.flush()
                os._exit(WORKER_LOST_STATUS)
            finally:
                self._run_over.set()
                self._learner.close()
            report.result()

    def _train(self, report: futures.Future) -> None:
        self._save_at = time.monotonic() + self._checkpoint_seconds
        try:
            self._wait_for_first_rows()
            while not (self._no_more_rows.is_set() or lp.stop_event().is_set()):
                self._profiler.reach(self._learner.num_steps)
                self._learner.step()
                if report.done():
                    report.result()  # It ends early only by an error.
                if self._is_chief and time.monotonic() >= self._save_at:
                    self._save()
            while self._has_partners:
                self._learner.cancel()  # All workers end at the same step, which ends this loop.
                self._learner.step()
        except (StoppedError, rr.StepCancelled):
            # No actor inserts any more. Some steps of the cancelled call may have been done.
            self._learner.refresh()
        finally:
            self._trained.set()
            self._profiler.close()
        if report.done():
            report.result()

    def _wait_for_first_rows(self) -> None:
        """Waits, interruptibly, until every table has enough items to be sampled."""
        started = time.monotonic()
        waiting = WaitLog("the learner", self._missing_rows)
        while not self._no_more_rows.is_set():
            tables = self._table_infos()
            if tables and not any(_lacks_rows(table) for table in tables):
                return
            waiting.tick(time.monotonic() - started)
            time.sleep(0.05)

    def _table_infos(self) -> list[Any]:
        """Returns Reverb's account of the tables; [] while a server does not answer."""
        try:
            return [
                replay.server_info(timeout=_SECONDS_FOR_INFO)[TABLE] for replay in self._replays
            ]
        except reverb.errors.ReverbError:
            return []

    def _missing_rows(self) -> str:
        tables = self._table_infos()
        if not tables:
            return "a replay that answers; it is starting"
        info = min(tables, key=lambda table: table.rate_limiter_info.insert_stats.completed)
        limiter = info.rate_limiter_info
        return (
            f"rows: the table holds {info.current_size}, sampling starts at "
            f"{limiter.min_size_to_sample}; {limiter.sample_stats.completed} sampled of "
            f"{limiter.insert_stats.completed} inserted (allowed: {limiter.samples_per_insert:g} "
            "samples per insert); the actors are behind"
        )

    def _report(self) -> None:
        """Reports to the counter every second, and cancels a step that will get no more items."""
        try:
            self._watch()
        except BaseException:
            self._learner.cancel()  # A waiting step must not hide the error.
            raise

    def _watch(self) -> None:
        waiting = WaitLog("the learner", self._missing_rows)
        last_steps, last_change = -1, time.monotonic()
        while True:
            starved = 0
            for _ in range(_POLLS_PER_REPORT):
                if self._run_over.wait(_POLL_SECONDS):
                    return
                starved += self._learner.starved()
            steps, now = self._learner.num_steps, time.monotonic()
            moved = steps != last_steps
            if moved:
                last_steps, last_change = steps, now
            if self._is_chief:
                self._report_time(starved / _POLLS_PER_REPORT)
                metrics = self._learner.metrics() if moved else {}
                progress = self._counter.report_learner(steps, starved / _POLLS_PER_REPORT, metrics)
            else:
                progress = self._counter.progress()
            if progress.steps_done:
                self._no_more_rows.set()
            # A learner that saves, or whose steps are long, makes no progress either.
            is_waiting = starved == _POLLS_PER_REPORT and not self._trained.is_set()
            if progress.steps_done or lp.stop_event().is_set():
                # Another worker may be the one that gets no items.
                may_starve = is_waiting or (self._has_partners and not self._trained.is_set())
                if may_starve and now - last_change > _SECONDS_TO_STARVE:
                    self._learner.cancel()
            elif is_waiting and steps > 0:
                waiting.tick(now - last_change)

    def _report_time(self, starved: float) -> None:
        """Tells the counter how the learner has spent its time since the last report.

        Args:
          starved: share of that time in which its input was empty.
        """
        grown = self._stopwatch.take(**self._learner.seconds)
        if self._is_building:
            self._is_building = self._learner.num_steps == self._steps_at_start
            return
        others = sum(grown[part] for part in self._learner.seconds)
        grown["wait"] = min(starved * grown[TOTAL], max(grown["step"] - others, 0.0))
        grown["step"] -= others + grown["wait"]
        self._counter.add_time("learner", grown)

    def _save(self) -> bool:
        """Saves a checkpoint of everything: replay, learner, counters, random generators.

        Returns:
          False if the replay cannot be saved now.
        """
        try:
            self._save_all()
            self._unsaved_since = None
            return True
        except ReplayError as error:
            now = time.monotonic()
            self._unsaved_since = self._unsaved_since or now
            if now - self._unsaved_since > _SECONDS_WITHOUT_REPLAY:
                raise
            _LOG.warning("not saved: %s", error)
            self._save_at = now + _SECONDS_BETWEEN_TRIES
            return False

    def _save_all(self) -> None:
        steps = self._learner.num_steps
        started = time.monotonic()
        # The counter's number of learner steps may be a second old.
        progress = {**self._counter.snapshot(), "learner_steps": steps}
        if self._saved == (steps, progress["environment_steps"]):
            return
        self._checkpointer.save(
            steps,
            {
                "learner": TrackablePart(**self._learner.trackables()),
                "weights": WeightsPart(self._learner.get_variables(self._learner.network_names)),
                **self._replay_parts(),
                "progress": JsonPart(lambda: progress, lambda _: None),
            },
        )
        self._saved = (steps, progress["environment_steps"])
        # A large table takes seconds to write: saving takes at most a twentieth of the time.
        self._save_seconds = time.monotonic() - started
        pause = max(self._checkpoint_seconds, 20.0 * self._save_seconds)
        self._save_at = time.monotonic() + pause

    def _replay_parts(self) -> dict[str, ReplayPart | SameReplayPart]:
        latest = self._checkpointer.latest()
        in_haste = lp.stop_event().is_set() and self._save_seconds > _SECONDS_TO_SAVE_IN_HASTE
        return {
            part_name(shard): SameReplayPart(latest.path / part_name(shard))
            if in_haste and latest is not None
            else ReplayPart(replay)
            for shard, replay in enumerate(self._replays)
        }


def _lacks_rows(table: Any) -> bool:
    """Whether a table, as Reverb describes it, has too few items to be sampled."""
    return table.current_size < table.rate_limiter_info.min_size_to_sample
