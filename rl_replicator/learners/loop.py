"""The loop that trains a learner, on any replicator and from any checkpoint, to its last step."""

import collections
import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np

from rl_replicator import errors
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.checkpointer import Savable
from rl_replicator.checkpoints.manifest import DamageError
from rl_replicator.checkpoints.parts import JsonPart, JsonValue, TrackablePart, VariableValues
from rl_replicator.learners.contract import Evaluation, Learner, Reference
from rl_replicator.learners.reports import ChiefReports, Reports
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.steps import PhaseCall, Steps
from rl_replicator.processes import signals
from rl_replicator.replicator import Replicator
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.profiler import StepProfiler
from rl_replicator.runs.run import SILENT, RunListener
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.step import evaluation as evaluation_step
from rl_replicator.step import random_ops

_LOG = logging.getLogger(__name__)

_CALLS_AHEAD = 2
_SECONDS_BETWEEN_TICKS = 0.2
# How long to wait for a cancelled evaluation to end.
_SECONDS_TO_CANCEL = 10.0
_STATELESS = (
    "use tf.random.stateless_* (or tf.nn.experimental.stateless_dropout, instead of Keras' "
    "Dropout) with a seed that counts steps in a variable of trackables()"
)
# Saving takes at most this share of the time.
_SAVING_SHARE = 0.05
# The functions that return the data of an evaluation, for errors.
_DATA, _REFERENCE_DATA = "evaluation().input_fn", "evaluation().reference.input_fn"


class Training:
    """The training of a learner in one process.

    All processes of a job perform the same steps in the same order. Only the chief writes.
    """

    def __init__(
        self,
        replicator: Replicator,
        learner: Learner,
        run: RunDirectory,
        options: RunOptions,
        listener: RunListener = SILENT,
        best: bool = False,
    ):
        """Compiles the learner and restores a checkpoint, if there is one.

        Args:
          replicator: runs the steps.
          learner: the learner, made for `replicator`.
          run: directory of checkpoints and metrics.
          options: the options of the run.
          listener: receives the evaluations.
          best: whether to restore the checkpoint with the best evaluation, not the newest; for
            `measure` only.

        Raises:
          CheckpointError: if the checkpoint is damaged, or has other variables than the learner.
          ConfigError: if the learner cannot be replicated, if a step assigns a variable that is not
            in `trackables()`, if its steps take another number of batches than those of the
            checkpoint, or if the processes of a job do not see the same checkpoint.
        """
        self._replicator, self._learner, self._run = replicator, learner, run
        self._evaluation_seconds, self._listener = options.evaluation_seconds, listener
        folder = run.best if best else run.checkpoints
        self._checkpointer = Checkpointer(folder, options.keep_checkpoints)
        self._best = Checkpointer(run.best, keep=1)
        self._score_to_reach: float | None = None
        # What a checkpoint holds beside the learner. `evaluated` is the newest step that was
        # evaluated, or that needs no evaluation.
        self._progress: dict[str, Any] = {
            "batches": 0,
            "seconds": 0.0,
            "evaluated": 0,
            "figures": {},
            "row": {},
        }
        progress = JsonPart(dict, self._progress.update)
        is_resumed = self._checkpointer.latest() is not None
        if is_resumed:
            self._checkpointer.restore({"progress": progress})
        self._check_start()
        repeatable: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if options.deterministic:
            repeatable = random_ops.refused("steps and evaluations", _STATELESS)
        with repeatable:
            self._steps = Steps(
                replicator, learner, self._progress["batches"], options.steps_per_call
            )
            self._check_phases()
            self._evaluation = evaluation = learner.evaluation()
            reference = None if evaluation is None else evaluation.reference
            self._compute_sums = _compile(replicator, evaluation, evaluation)
            self._compute_reference = _compile(replicator, evaluation, reference)
        if evaluation is not None and reference is None and self._compute_sums is not None:
            _check_figures(evaluation, self._compute_sums.example())
        self._reference_sums: tuple[Any, ...] = ()
        trackables = learner.trackables()
        self._variables = TrackablePart(**trackables)
        self._variables.check_holds(self._steps.assigned_variables(), type(learner).__name__)
        self._optimizers = [x for x in trackables.values() if hasattr(x, "report_skipped")]
        if is_resumed:
            # After compiling, which creates variables that the learner did not have yet. The
            # progress is restored again, because a live run, which is only measured here, may have
            # saved a newer checkpoint.
            self._checkpointer.restore({"progress": progress, "learner": self._variables})
            for optimizer in self._optimizers:
                optimizer.note_reported()  # The process that saved has reported them.
        # Batches of the calls that have returned. `Steps.batches` is ahead of it while calls run.
        self._batches = self._within(self._progress["batches"])
        self._reports: Reports = (
            ChiefReports(
                run,
                learner.num_steps,
                self._steps.batches_per_step,
                learner.global_batch_size,
                self.step,  # 0 without a checkpoint: a killed run may have left rows.
                self._progress["seconds"],
                self._progress["row"],
            )
            if replicator.is_chief
            else Reports()
        )
        self._started = time.monotonic() - self._progress["seconds"]
        is_profiled = options.profile_steps and replicator.is_chief
        self._profiler = StepProfiler(options.profile_steps if is_profiled else None, run.path)
        self._checkpoint_seconds = options.checkpoint_seconds
        self._saved_at, self._saving_seconds = time.monotonic(), 0.0
        self._last_tick = 0.0

    def _check_start(self) -> None:
        """Raises `ConfigError` unless all processes of a job have restored the same checkpoint."""
        batches = np.int64(self._progress["batches"])
        least, most = (int(self._replicator.reduce(op, batches)) for op in ("min", "max"))
        if least != most:
            raise errors.ConfigError(
                f"expected all processes to find the same checkpoint in {self._run.path}, got one "
                f"after {least} batches and one after {most}; use a directory that all processes "
                "share"
            )

    def _check_phases(self) -> None:
        """Raises `ConfigError` if the run took another number of batches a step so far."""
        now = self._steps.batches_per_step
        before = self._progress.get("batches_per_step", now)
        if before != now:
            raise errors.ConfigError(
                f"expected phases() that take {before} batches a step, as those of the run in "
                f"{self._run.path}, got {now}; give the phases their former times, or choose "
                "another --run-dir"
            )

    @property
    def step(self) -> int:
        """Number of whole steps since the start of the run."""
        return self._batches // self._steps.batches_per_step

    @property
    def seconds(self) -> float:
        """Duration of the run so far, without the time between interruption and resumption."""
        return time.monotonic() - self._started

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the evaluation after the last step, or else the last training metrics."""
        if self._progress["figures"] and self._progress["evaluated"] == self.step:
            return self._progress["figures"]
        table = read_metrics(self._run.path, "train")
        # A run that goes on, or was killed, has rows beyond the checkpoint that is measured here.
        rows = np.flatnonzero(table.get("steps", np.zeros(0)) <= self.step)
        metrics = list(table.items())[2:] if rows.size else []
        return {name: float(column[rows[-1]]) for name, column in metrics}

    def run(self) -> int | None:
        """Trains to the end, or until a signal requests a stop. Saves in both cases.

        Returns:
          The signal's number; None if the run is complete.

        Raises:
          CheckpointError: if a checkpoint cannot be written, or the best one cannot be read.
          Diverged: if a metric or a variable is not finite. Nothing is saved then.
          ConfigError: if the training data ends, or an evaluation takes too long.
          WorkerLost: if another process of the job died.
        """
        with (
            contextlib.closing(self._reports),
            contextlib.closing(self._profiler),
            self._best,
            self._checkpointer,
            _signals(self._cancel) as received,
        ):
            if self._replicator.is_chief and self._evaluation is not None:
                self._score_to_reach = _score_of_best(self._best, self._evaluation)
            try:
                if self._is_evaluation_due():  # The run was stopped during this evaluation.
                    self._evaluate_and_save()
                while self.step < self._learner.num_steps:
                    goal = self._next_evaluation()
                    self._train_until(goal)
                    if self.step == goal:
                        self._reports.flush(goal)
                        self._evaluate_and_save()
                    else:
                        self._save()
            except errors.StepCancelled:
                self._batches = self._within(self._steps.batches)
                self._save()
                return received[0] if received else signal.SIGTERM
            except errors.EndOfData:
                self._batches = self._steps.batches
                remedy = "repeat() it in input_fn"
                if not self._steps.inputs.position:
                    remedy = (
                        "a whole batch is missing: repeat() examples before batch(..., "
                        "drop_remainder=True), or use smaller batches"
                    )
                raise errors.ConfigError(
                    f"expected training data for {self._learner.num_steps} steps, but it ended "
                    f"after {self.step}; {remedy}"
                ) from None
            except errors.Diverged:
                self._reports.flush(self.step)  # The last metrics may show why.
                raise
        return None

    def _train_until(self, step: int) -> None:
        """Runs the calls up to a step, or until a checkpoint is due.

        A call begins before the previous one has returned, so that devices never wait for Python.
        """
        pending: collections.deque[PhaseCall] = collections.deque()
        end = step * self._steps.batches_per_step
        next_batch = self._batches
        while pending or next_batch < end:
            while next_batch < end and len(pending) < _CALLS_AHEAD:
                pending.append(self._steps.begin(next_batch, end))
                next_batch += pending[-1].count
            call = pending.popleft()
            try:
                if self._absorb(call, self._wait(call)) < call.count:
                    raise errors.EndOfData("the data ended within a call")
            except errors.StepCancelled as cancelled:
                futures.wait([call.future for call in pending])
                if cancelled.outputs is not None:
                    self._absorb(call, cancelled.outputs)
                raise
            except BaseException:
                self._steps.cancel()
                futures.wait([call.future for call in pending])
                raise
            self._batches = call.batch + call.count
            self._profiler.reach(self.step)
            if not self._checkpointer.is_saving:
                self._checkpointer.wait()  # Raises the error of a save that failed.
            if self._is_save_due():
                end = next_batch

    def _is_save_due(self) -> bool:
        """Returns whether the clock asks for a checkpoint; other processes than the chief go on."""
        pause = max(self._checkpoint_seconds, self._saving_seconds / _SAVING_SHARE)
        return self._replicator.is_chief and time.monotonic() - self._saved_at > pause

    def _wait(self, call: PhaseCall) -> Any:
        while not futures.wait([call.future], _SECONDS_BETWEEN_TICKS).done:
            self._tick()
        self._tick()
        return call.future.result()

    def _tick(self) -> None:
        now = time.monotonic()
        if now - self._last_tick >= _SECONDS_BETWEEN_TICKS:
            self._last_tick = now
            ready = self._steps.inputs.num_ready()
            self._reports.tick(self._steps.batches, None if ready is None else ready == 0)

    def _absorb(self, call: PhaseCall, outputs: Any) -> int:
        """Reports the metrics of a call; returns the number of batches that it used."""
        metrics = self._replicator.local_results(outputs)[0]  # The same on all replicas.
        # The call stopped early if the data ended.
        count = min(call.count, self._steps.batches - call.batch)
        prefix = f"{call.phase.name}_" if call.phase.name else ""
        metrics = {f"{prefix}{name}": value.numpy() for name, value in metrics.items()}
        steps = [(call.batch + i) // self._steps.batches_per_step + 1 for i in range(count)]
        self._check_finite(metrics, steps)
        self._reports.add(call.batch, count, metrics)
        return count

    def _within(self, batches: int) -> int:
        """Returns a number of batches, limited to the end of the run.

        Asynchronous workers run ahead of the loop, even beyond the last step. Such steps are saved,
        but not counted: a run that has taken more than `num_steps` cannot be continued.
        """
        return min(batches, self._learner.num_steps * self._steps.batches_per_step)

    def _cancel(self) -> None:
        """Stops training and evaluation as soon as possible; called by a signal handler."""
        self._steps.cancel()
        for compute in (self._compute_reference, self._compute_sums):
            if compute is not None:
                compute.cancel()

    def measure(self) -> dict[str, float]:
        """Evaluates the learner on all evaluation data.

        Returns:
          Figures by name.

        Raises:
          ConfigError: if the learner has no evaluation, the evaluation takes too long, or its
            `metrics_fn` returns anything but numbers by name.
          StepCancelled: after a signal that requests a stop, within `run`.
        """
        if self._evaluation is None:
            raise errors.ConfigError(
                "expected a learner with an evaluation, got none; return one from evaluation()"
            )
        return _as_figures(self._evaluation.metrics_fn(*self._all_sums()))

    def close(self) -> None:
        """Closes the progress line and the tables of a `Training` that only measures."""
        self._reports.close()

    def _next_evaluation(self) -> int:
        """Returns the step after which the next evaluation is due; at most the last step."""
        if self._evaluation is None:
            return self._learner.num_steps
        every = self._evaluation.every
        return min((self.step // every + 1) * every, self._learner.num_steps)

    def _is_evaluation_due(self) -> bool:
        """Returns whether an evaluation up to the checkpoint's step was due, but was not made.

        It may have been due earlier, because asynchronous workers run ahead of the loop.
        """
        evaluated = self._progress["evaluated"]
        if self._evaluation is None or evaluated >= self.step:
            return False
        every = self._evaluation.every
        is_last = self.step >= self._learner.num_steps
        return is_last or self.step // every > evaluated // every

    def _evaluate_and_save(self) -> None:
        """Evaluates and saves; then notifies the listener, so that its errors lose no steps."""
        figures = None if self._evaluation is None else self._evaluate(self._evaluation)
        self._save()
        if figures is not None and self._replicator.is_chief:
            self._reports.add_images(self.step, self._learner.images(self.step))
            self._listener.evaluated({"steps": self.step, **figures})

    def _evaluate(self, evaluation: Evaluation) -> dict[str, float]:
        """Writes and returns the figures, and saves the checkpoint if it is the best so far."""
        sums = self._all_sums()
        try:
            figures = _as_figures(evaluation.metrics_fn(*sums))
            name = evaluation.best_figure(figures)
        except Exception:
            self._save()  # A mistake in the figures must not lose the steps before it.
            raise
        self._check_finite({key: np.array([x]) for key, x in figures.items()}, [self.step])
        self._reports.add_evaluation(self.step, figures, name)
        self._progress |= {"evaluated": self.step, "figures": figures}
        score = _score(evaluation, figures)
        # Of equal checkpoints, the newest is best, because it was trained longest.
        if self._replicator.is_chief and (
            self._score_to_reach is None or score >= self._score_to_reach
        ):
            self._score_to_reach = score
            self._note_progress()
            self._best.begin_save(self.step, self._parts(self._capture()))
        return figures

    def _all_sums(self) -> tuple[Any, ...]:
        """Returns the arguments of `metrics_fn`, for a learner with an evaluation."""
        assert self._compute_sums is not None
        if self._compute_reference is not None and not self._reference_sums:
            sums = self._wait_for_sums(self._compute_reference, _REFERENCE_DATA)
            self._reference_sums = (sums,)
        return self._wait_for_sums(self._compute_sums, _DATA), *self._reference_sums

    def _wait_for_sums(self, compute: evaluation_step.EvaluationStep, source: str) -> Any:
        """Computes the sums in the background, because the main thread must handle signals.

        Args:
          compute: computes them.
          source: name of the function that returns the data, for the error.
        """
        started = time.monotonic()
        future = self._replicator.begin(compute, compute.cancel)
        try:
            while not futures.wait([future], _SECONDS_BETWEEN_TICKS).done:
                seconds = time.monotonic() - started
                self._reports.tick_evaluation(self.step, seconds)
                if seconds > self._evaluation_seconds:
                    raise errors.ConfigError(
                        f"expected an evaluation within {self._evaluation_seconds:g} s, but the "
                        f"one after step {self.step} has not ended; let {source} return finite "
                        "data, or raise --evaluation-seconds"
                    )
        except BaseException:
            compute.cancel()
            futures.wait([future], _SECONDS_TO_CANCEL)
            raise
        return future.result()

    def _check_finite(self, metrics: Mapping[str, np.ndarray], steps: Sequence[int]) -> None:
        """Raises `Diverged` if one of the metrics, [count] each, is not finite."""
        for i, step in enumerate(steps):
            for name, values in metrics.items():
                if not np.isfinite(values[i]):
                    raise self._diverged(f"{name} = {values[i]} at step {step}")

    def _diverged(self, found: str) -> errors.Diverged:
        return self._checkpointer.diverged(found, "lower the learning rate or clip the gradients")

    def _save(self) -> None:
        """Begins to save a checkpoint, which is written while training continues."""
        # A resumed run does not repeat an evaluation that its checkpoint records: if that was the
        # best one, its weights must already be in `best/`.
        self._best.wait()
        for optimizer in self._optimizers:
            optimizer.report_skipped()
        start = time.monotonic()
        if self._replicator.is_chief:
            self._note_progress()
        variables = self._capture()
        if self._replicator.is_chief:
            self._checkpointer.begin_save(self.step, self._parts(variables))
        self._saved_at = time.monotonic()
        self._saving_seconds = self._saved_at - start + self._checkpointer.write_seconds

    def _capture(self) -> VariableValues:
        """Copies all variables, to save them; raises `Diverged` if one is not finite."""
        variables = self._variables.capture()
        bad = variables.first_not_finite()
        if bad is not None:
            raise self._diverged(f"NaN or infinity in variable {bad!r} after step {self.step}")
        return variables

    def _parts(self, variables: VariableValues) -> dict[str, Savable]:
        return {"learner": variables, "progress": JsonValue(self._progress)}

    def _note_progress(self) -> None:
        """Updates the progress that the next checkpoint saves."""
        # Otherwise the variables would contain asynchronous steps that are not counted yet.
        self._replicator.synchronize()
        self._progress["batches"] = self._steps.batches
        self._progress["batches_per_step"] = self._steps.batches_per_step
        self._progress["seconds"] = self.seconds
        self._progress["row"] = self._reports.state()


def is_finished(run: RunDirectory, learner: Learner) -> bool:
    """Returns whether a run has taken all steps of its learner and was evaluated after them.

    Args:
      run: directory of the run.
      learner: the learner as configured now.

    Raises:
      ConfigError: if the run has taken more steps than the learner's `num_steps`.
    """
    checkpointer = Checkpointer(run.checkpoints)
    latest = checkpointer.latest()
    if latest is None or latest.step < learner.num_steps:
        return False
    if latest.step > learner.num_steps:
        raise errors.ConfigError(
            f"expected at least {latest.step:,} steps, which the run in {run.path} has taken, got "
            f"{learner.num_steps:,}; ask for more, or choose another --run-dir"
        )
    return learner.evaluation() is None or _progress(checkpointer)["evaluated"] == latest.step


def _progress(checkpointer: Checkpointer) -> dict[str, Any]:
    found: dict[str, Any] = {}
    checkpointer.restore({"progress": JsonPart(dict, found.update)})
    return found


def _compile(
    replicator: Replicator,
    evaluation: Evaluation | None,
    data: Evaluation | Reference | None,
) -> evaluation_step.EvaluationStep | None:
    """Compiles the sums over the data of an evaluation, or over those of its reference."""
    if evaluation is None or data is None:
        return None
    return replicator.make_evaluation(data.sums_fn, data.input_fn, evaluation.global_batch_size)


class _Sums(dict):
    """Sums by name, one of which may be missing."""

    def __missing__(self, name: Any) -> Any:
        raise errors.ConfigError(
            "expected evaluation().metrics_fn to use the sums that sums_fn returns "
            f"({', '.join(map(str, self))}), got {name!r}; correct the name"
        )


def _check_figures(evaluation: Evaluation, sums: Any) -> None:
    """Raises `ConfigError` before the first step if `metrics_fn` would make no figures of sums.

    It fails for more reasons than wrong names, and not all numbers suit it, so that its other
    errors are left to the first evaluation.
    """
    try:
        with np.errstate(all="ignore"):
            figures = evaluation.metrics_fn(_Sums(sums) if isinstance(sums, Mapping) else sums)
        evaluation.best_figure(_as_figures(figures))
    except errors.ConfigError:
        raise
    except Exception:
        return


def _as_figures(found: Any) -> dict[str, float]:
    """Converts the result of `metrics_fn` to figures; raises `ConfigError` if it is invalid."""
    try:
        return {name: float(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        raise errors.ConfigError(
            "expected evaluation().metrics_fn to return numbers by name, such as {'loss': 0.5}, "
            f"got {found!r}; return one number for each name"
        ) from None


def _score(evaluation: Evaluation, figures: Mapping[str, float]) -> float:
    """Returns a number that is higher for a better checkpoint."""
    figure = figures[evaluation.best.removeprefix("-")]
    return -figure if evaluation.best.startswith("-") else figure


def _score_of_best(best: Checkpointer, evaluation: Evaluation) -> float | None:
    """Returns the score that a checkpoint must reach to be the best one; None if any will do.

    Args:
      best: where the run keeps its best checkpoint.
      evaluation: the learner's evaluation.
    """
    try:
        figures = {} if best.latest() is None else _progress(best)["figures"]
    except DamageError as error:
        _LOG.warning("the next evaluation counts as the best one so far: %s", error)
        return None
    is_known = evaluation.best.removeprefix("-") in figures
    return _score(evaluation, figures) if is_known else None


@contextlib.contextmanager
def _signals(cancel: Any) -> Iterator[list[int]]:
    """Calls `cancel` at the first signal that requests a stop.

    A second one has its usual effect; see `signals.note`.

    Yields:
      A list that holds the signal's number as soon as one was received.
    """
    received: list[int] = []
    before: dict[int, Any] = {}

    def handle(number: int, frame: Any) -> None:
        del frame
        if not signals.note(number, received):
            return
        if len(received) == 1:
            cancel()
        else:
            signals.give_back(handle, before)
            os.kill(os.getpid(), number)

    before.update(signals.take(handle))
    try:
        yield received
    finally:
        signals.give_back(handle, before)
