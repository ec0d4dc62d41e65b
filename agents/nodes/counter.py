"""The counter node: it tracks a run's progress and waiting times, and alone writes its metrics."""

import collections
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from agents.learning.weights import WeightsPart
from agents.nodes import starts
from agents.nodes.timing import TOTAL
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart, JsonValue
from rl_replicator.errors import CheckpointError
from rl_replicator.runs.metrics import MetricWriter, read_metrics, space_needed
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")
# Environment steps that an actor may take before it asks for more.
LEASE = 100
_SECONDS_BETWEEN_TIMES = 10.0
# The learner starves if it waits for rows for more than this share of its last seconds.
_STARVING = 0.8


def program_folder(run_dir: Path) -> Path:
    """Returns the folder of the running program: its clock, and the saves of the learner alone.

    Args:
      run_dir: directory of the run.
    """
    return RunDirectory(run_dir).checkpoints / ".learner"


def seconds_taken(run_dir: Path, before: float) -> float:
    """Returns how long a run has taken; the first call of a program starts its clock.

    Later calls come from a counter that was restarted alone, while the other nodes went on.

    Args:
      run_dir: directory of the run.
      before: seconds that it had taken before the program, from its checkpoint.

    Raises:
      DiskError: if the disk is full.
    """
    clock = program_folder(run_dir) / "clock"
    now = time.time()
    try:
        # At least `before`: the clocks of two machines may differ.
        return max(before, now - float(clock.read_text("utf-8")))
    except (FileNotFoundError, ValueError):  # The latter after a kill during the write.
        with space_needed():
            clock.parent.mkdir(parents=True, exist_ok=True)
            clock.write_text(repr(now - before), "utf-8")
        return before


@dataclasses.dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
      environment_steps: steps that all actors have taken since the beginning of the run.
      total_steps: environment steps of the whole run.
      learner_steps: learner steps since the beginning of the run.
      episodes: episodes that all actors have finished since the beginning of the run.
      episode_return: return of the newest finished training episode; None before the first.
      evaluation_return: mean return of the newest evaluation; None before the first.
      evaluation_step: environment steps at that evaluation.
      actor_waiting: share of the time that actors wait for the replay, 0 to 1.
      learner_waiting: share of the time that the learner waits for rows, 0 to 1.
      actors_finishing: actors that get no more steps, and whose last rows the replay has not
        confirmed.
      learner_done: whether the learner has saved its last checkpoint.
      wall_time: seconds that the run has taken, as in its metrics.
    """

    environment_steps: int
    total_steps: int
    learner_steps: int
    episodes: int
    episode_return: float | None
    evaluation_return: float | None
    evaluation_step: int
    actor_waiting: float
    learner_waiting: float
    actors_finishing: int
    learner_done: bool
    wall_time: float

    @property
    def steps_done(self) -> bool:
        """Whether the actors have taken all steps of the run, and the replay holds them."""
        return self.environment_steps >= self.total_steps and not self.actors_finishing


@dataclasses.dataclass(frozen=True)
class Episode:
    """A finished training episode.

    Attributes:
      environment: number of the environment among those of all actors, from 0.
      episode_return: undiscounted sum of rewards.
      length: environment steps; a repeated action counts as a whole, even if it was cut short.
    """

    environment: int
    episode_return: float
    length: int


class Counter:
    """Leases environment steps to actors, collects the nodes' reports, and writes the metrics.

    Leases make a run of N steps take exactly N, whatever the number of actors. (If actions are
    repeated, the last action of an actor may exceed N.)
    """

    def __init__(self, run_dir: Path, total_steps: int, restored: Mapping[str, Any] | None):
        """Opens the metrics.

        Args:
          run_dir: the run's directory.
          total_steps: environment steps of the whole run.
          restored: what `snapshot` returned for the checkpoint; None for a new run.
        """
        state = restored or {}
        self._lock = threading.Lock()
        self._total_steps = total_steps
        self._environment_steps = int(state.get("environment_steps", 0))
        self._episodes = int(state.get("episodes", 0))
        self._steps_at_start = self._environment_steps
        self._starts: dict[str, int] = dict(state.get("starts", {}))
        self._learner_steps = int(state.get("learner_steps", 0))
        self._granted = self._environment_steps
        self._leases: dict[int, int] = {}
        self._lease_starts: dict[int, int] = {}
        self._finishing: set[int] = set()
        self._waiting = {"actor": 0.0, "learner": 0.0}
        self._episode_return: float | None = None
        self._q_mean: float | None = state.get("q_mean")
        # Of all nodes of a kind, in seconds.
        self._spent: dict[tuple[str, str], float] = collections.defaultdict(float)
        self._write_time_at = 0.0
        self._learner_done = False
        self._best = Checkpointer(RunDirectory(run_dir).best, keep=1)
        # A killed run may have written rows beyond its checkpoint; they will be written again.
        self._writer = MetricWriter(
            run_dir,
            "environment_steps",
            resume_step=self._environment_steps,
            seconds=float(state.get("wall_time", 0.0)),
        )
        # The remaining rows show which evaluations need not be repeated.
        self._writer.discard_beyond_resume("evaluator")
        self._best_return = _best_return(run_dir, self._best)
        self._evaluation = _newest_evaluation(run_dir) or (
            state.get("evaluation") or {"return": None, "step": 0}
        )

    def lease(self, actor: int, done: int, waiting: float, episodes: list[Episode]) -> int:
        """Takes an actor's report and grants its next steps.

        Args:
          actor: index of the actor.
          done: steps that it took of its last lease.
          waiting: share of that time in which it waited for the replay.
          episodes: episodes that it has finished since.

        Returns:
          Steps that it may take now; 0 if the run has no more: the actor then calls `actor_done`.
        """
        with self._lock:
            self._environment_steps += done
            # Steps that the actor did not use, because it was restarted, can be granted again. A
            # restarted counter has no record of the lease that this report belongs to.
            self._granted += done - self._leases.pop(actor, 0)
            self._waiting["actor"] += 0.1 * (waiting - self._waiting["actor"])
            for episode in episodes:
                self._episodes += 1
                self._episode_return = episode.episode_return
                self._write(
                    "actor",
                    {
                        "episode_return": episode.episode_return,
                        "episode_length": episode.length,
                        "actor": actor,
                        "episodes": self._episodes,
                    },
                )
            steps = min(LEASE, self._total_steps - self._granted)
            if steps > 0:
                self._lease_starts[actor] = self._granted
                self._granted += steps
                self._leases[actor] = steps
            else:
                self._finishing.add(actor)
            return max(steps, 0)

    def actor_done(self, actor: int) -> None:
        """Notes that the replay holds all rows of an actor that gets no more steps.

        Args:
          actor: index of the actor.
        """
        with self._lock:
            self._finishing.discard(actor)

    def standby(self, actor: int) -> Literal["act", "wait", "end"]:
        """Returns what an actor that was granted no steps should do.

        Steps may become available again: a restarted counter resumes from those of the newest
        checkpoint.

        Args:
          actor: index of the actor.
        """
        with self._lock:
            if self._learner_done:
                return "end"
            return "act" if self._granted < self._total_steps else "wait"

    def lease_start(self, actor: int) -> int:
        """Returns the steps of the run that were granted before an actor's current lease.

        Whatever depends on the steps of the run uses this number: most other actors are in the
        middle of a lease and have not reported its steps.

        Args:
          actor: index of the actor.
        """
        with self._lock:
            return self._lease_starts.get(actor, self._environment_steps)

    def may_run_ahead(self, feeds_several: bool) -> bool:
        """Returns whether an actor whose rows the replay does not accept should go on anyway.

        With several replay servers, the learner takes the same number of rows from each. Actors of
        a server that is ahead may wait for the learner, while the learner waits for rows of another
        server that only these actors can insert, or that no actor will insert because no steps are
        left.

        Args:
          feeds_several: whether the actor inserts rows into several servers.
        """
        with self._lock:
            is_last = self._granted >= self._total_steps
            return self._waiting["learner"] > _STARVING and (is_last or feeds_several)

    def environment_steps(self) -> int:
        """Returns the steps that all actors have taken since the beginning of the run."""
        return self._environment_steps

    def start_environment(self, environment: int) -> tuple[int, int]:
        """Returns integers that no earlier start of the environment in this run has received.

        Random streams seeded with them repeat nothing, wherever the run was stopped. (A restored
        counter has no record of the starts since its checkpoint, so one of the integers is the
        number of steps at that checkpoint.)

        Args:
          environment: its number among those of all actors, from 0.
        """
        with self._lock:
            starts = self._starts.get(str(environment), 0)
            self._starts[str(environment)] = starts + 1
            return starts, self._steps_at_start

    def report_learner(self, steps: int, waiting: float, metrics: Mapping[str, float]) -> Progress:
        """Takes the learner's report.

        Args:
          steps: learner steps since the beginning of the run.
          waiting: share of the time in which it waited for rows.
          metrics: metrics of the last steps, by name.

        Returns:
          The progress of the run.

        Raises:
          ConfigError: if a metric has the name of a column that every row has.
        """
        with self._lock:
            self._learner_steps = steps
            self._waiting["learner"] += 0.3 * (waiting - self._waiting["learner"])
            if metrics:
                self._q_mean = metrics.get("q_mean")
                self._write("learner", metrics, clocks={"learner_steps": steps})
        return self.progress()

    def add_time(self, kind: str, grown: Mapping[str, float]) -> None:
        """Takes a report on how a node has spent its time.

        Args:
          kind: kind of node, "actor" or "learner".
          grown: the result of `agents.nodes.timing.Timing.take`.
        """
        with self._lock:
            for part, seconds in grown.items():
                self._spent[kind, part] += seconds
            if self._writer.seconds >= self._write_time_at:
                self._write_time()

    def learner_done(self) -> None:
        """Notes that the learner has finished training and saved its last checkpoint."""
        with self._lock:
            self._learner_done = True

    def record_evaluation(
        self,
        environment_steps: int,
        figures: Mapping[str, float],
        picture: np.ndarray | None,
        weights: Mapping[str, np.ndarray],
        episodes: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Takes an evaluation; saves the policy if it is the best one of the run so far.

        Args:
          environment_steps: steps of the run at the start of the evaluation.
          figures: by name: those of `agents.nodes.evaluator`, and `learner_steps`, the
            learner steps that made the evaluated weights.
          picture: an observation of the evaluation, [height, width, 3] uint8; None if observations
            are no images.
          weights: the weights of the networks that act, by path.
          episodes: a row for each episode, of `agents.nodes.starts`.

        Raises:
          CheckpointError: if the disk is full or cannot be written.
        """
        mean = figures["episode_return"]
        evaluation = {"return": mean, "step": environment_steps}
        # Before the row is written: an evaluation that has a row is never repeated.
        if mean >= self._best_return:
            learner_steps = int(figures["learner_steps"])
            progress = {
                "environment_steps": environment_steps,
                "learner_steps": learner_steps,
                "evaluation": {**evaluation, **figures},
            }
            self._best.save(
                learner_steps,
                {
                    "weights": WeightsPart(weights),
                    "progress": JsonValue(progress),
                },
            )
            self._best_return = mean
        with self._lock:
            if picture is not None:
                self._writer.write_image("pictures", environment_steps, "observation", picture)
            self._evaluation = evaluation
            row = dict(figures)
            if "discounted_return" in figures and self._q_mean is not None:
                row["q_bias"] = self._q_mean - figures["discounted_return"]
            self._writer.write_rows(starts.GROUP, environment_steps, episodes)
            self._write("evaluator", row, step=environment_steps)
            self._write_time()

    def snapshot(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold of the run's progress, as plain data."""
        with self._lock:
            return {
                "environment_steps": self._environment_steps,
                "learner_steps": self._learner_steps,
                "episodes": self._episodes,
                "starts": dict(self._starts),
                "evaluation": dict(self._evaluation),
                "q_mean": self._q_mean,
                "wall_time": self._writer.seconds,
            }

    def progress(self) -> Progress:
        """Returns the progress of the run."""
        with self._lock:
            return Progress(
                environment_steps=self._environment_steps,
                total_steps=self._total_steps,
                learner_steps=self._learner_steps,
                episodes=self._episodes,
                episode_return=self._episode_return,
                evaluation_return=self._evaluation["return"],
                evaluation_step=self._evaluation["step"],
                actor_waiting=self._waiting["actor"],
                learner_waiting=self._waiting["learner"],
                actors_finishing=len(self._finishing),
                learner_done=self._learner_done,
                wall_time=self._writer.seconds,
            )

    def _write_time(self) -> None:
        shares = {
            f"{kind}_{part}": min(1.0, max(0.0, seconds / self._spent[kind, TOTAL]))
            for (kind, part), seconds in self._spent.items()
            if part != TOTAL and self._spent[kind, TOTAL] > 0
        }
        if shares:
            self._write_time_at = self._writer.seconds + _SECONDS_BETWEEN_TIMES
            self._write("time", shares)

    def _write(
        self,
        group: str,
        values: Mapping[str, float],
        step: int | None = None,
        clocks: Mapping[str, float] | None = None,
    ) -> None:
        step = self._environment_steps if step is None else step
        self._writer.write(group, step, values, clocks)


class LearnerCounter(Counter):
    """The counter of a run without actors, whose steps are those of the learner."""

    def report_learner(self, steps: int, waiting: float, metrics: Mapping[str, float]) -> Progress:
        """Takes the learner's report; see `Counter`."""
        with self._lock:
            self._environment_steps = self._granted = min(steps, self._total_steps)
        return super().report_learner(steps, waiting, metrics)


def _newest_evaluation(run_dir: Path) -> dict[str, Any] | None:
    """Returns the newest evaluation in the metrics of a run; None if there is none.

    A checkpoint lacks the evaluations that came after it, such as the last one of a run that is
    continued with more steps: it would be repeated at the same step, with fewer episodes.
    """
    table = read_metrics(run_dir, "evaluator")
    returns = table.get("episode_return", np.zeros(0))
    if not returns.size:
        return None
    return {"return": float(returns[-1]), "step": int(table["environment_steps"][-1])}


def _best_return(run_dir: Path, best: Checkpointer) -> float:
    """Returns the return that a policy must reach to be the best one; -inf if none was kept.

    It is the highest return among the evaluations in the metrics, not that of the kept policy: a
    killed run may have saved a policy after its checkpoint, and then resumes without that
    evaluation.

    Args:
      run_dir: directory of the run; its metrics have no evaluations beyond its checkpoint.
      best: where the run keeps the best policy.
    """
    try:
        if best.latest() is None:
            return -math.inf
        best.restore({"progress": JsonPart(dict, lambda _: None)})
    except CheckpointError as error:
        _LOG.warning("the next evaluation counts as the best one so far: %s", error)
        return -math.inf
    past = read_metrics(run_dir, "evaluator").get("episode_return", ())
    return max(map(float, past), default=-math.inf)


def restored_counter(
    run_dir: Path, total_steps: int, make: Callable[..., Counter] = Counter
) -> Counter:
    """Makes the counter of a run, restored from the newest intact checkpoint if there is any.

    Args:
      run_dir: the run's directory.
      total_steps: environment steps of the whole run.
      make: the class of the counter.

    Raises:
      UsageError: if this machine does not see the run's directory.
      DiskError: if the disk is full.
    """
    run = RunDirectory(run_dir)
    run.check_visible()
    checkpointer = Checkpointer(run.checkpoints)
    state: dict[str, Any] = {}
    found = checkpointer.newest_intact("progress")
    if found is not None:
        checkpointer.restore({"progress": JsonPart(dict, state.update)}, found)
    elif read_metrics(run_dir, "learner"):
        _LOG.warning(
            "the counter starts again from 0 steps: there is no checkpoint in %s", run.checkpoints
        )
    seconds = seconds_taken(run_dir, float(state.get("wall_time", 0.0)))
    return make(run_dir, total_steps, {**state, "wall_time": seconds})
