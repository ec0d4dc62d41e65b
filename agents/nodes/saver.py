"""Saves the checkpoints of a run while its learner trains.

A run has two kinds. A checkpoint holds everything, replay included: the whole run continues from
it. Between two of them, the learner alone is saved every few seconds: a learner whose process is
killed continues from there, while the other nodes keep what they have.
"""

import contextlib
import logging
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import reverb

import launchpad as lp
from agents.agent import AgentLearner
from agents.learning.weights import WeightsPart
from agents.nodes.counter import Counter, program_folder
from agents.replay.checkpoint import ReplayError, ReplayPart, SameReplayPart, part_name
from rl_replicator.checkpoints import Checkpointer, pending_work
from rl_replicator.checkpoints.parts import JsonValue, TrackablePart, VariableValues
from rl_replicator.errors import CheckpointError
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")
# Ctrl-C ends a program within ten seconds: if the replay takes longer than this to write, the last
# checkpoint links the replay of the one before.
_SECONDS_TO_SAVE_IN_HASTE = 3.0
# A replay that died is restarted; if nothing can be saved for this long, the run fails.
_SECONDS_WITHOUT_REPLAY = 600.0
SECONDS_BETWEEN_TRIES = 2.0
# A low estimate, which distinguishes a table that is saved in a second from one that takes ten.
_BYTES_PER_SECOND = 1.5e7
# A large table takes seconds to write, which occupies processors and disk: saves take at most a
# twentieth of the time.
_PAUSE_PER_WRITING = 20.0
# Training time that a killed learner repeats, besides its restart, if it is saved fast. Saves may
# take a hundredth of the time: a learner from pixels, which takes long to write, is saved less
# often, and so is any learner after a slow write, because writes compete with its steps for
# processors and disk.
_LEARNER_SECONDS = 2.0
_PAUSE_PER_LEARNER = 100.0


def finite_state(learner: AgentLearner, checkpointer: Checkpointer) -> VariableValues:
    """Copies all variables of a learner, for a checkpoint.

    Args:
      learner: the learner, between two steps.
      checkpointer: provides the newest checkpoint, from which the run could continue.

    Raises:
      Diverged: if a variable holds NaN or infinity. If it were saved, it would replace the
        checkpoints from which the run can still continue.
    """
    part = TrackablePart(**learner.trackables())
    with pending_work.paused(part.variables().values()):
        values = part.capture()
    bad = values.first_not_finite()
    if bad is None:
        return values
    raise checkpointer.diverged(
        f"NaN or infinity in variable {bad!r} after learner step {learner.num_steps}",
        "lower the learning rates, or scale the rewards",
    )


class Saver:
    """Saves checkpoints of everything: replay, learner, counters, random generators.

    The learner pauses while its state is copied. The copy and the replay are written in the
    background, so the replay holds slightly newer rows than the counters indicate.
    """

    def __init__(
        self,
        run: RunDirectory,
        keep: int,
        learner: AgentLearner,
        replays: Sequence[reverb.Client],
        counter: Counter,
        seconds: float,
    ):
        """Saves nothing yet.

        Args:
          run: the directory of the run.
          keep: number of newest checkpoints to keep.
          learner: the learner.
          replays: clients of the replay servers.
          counter: provides the progress of the run.
          seconds: time between two checkpoints.
        """
        self._checkpointer = Checkpointer(run.checkpoints, keep)
        self._learner_only = Checkpointer(program_folder(run.path), keep=1)
        self._run_dir = run.path
        self._learner = learner
        self._replays = replays
        self._counter = counter
        self._seconds = seconds
        self._restored_from = self._checkpointer.newest_intact("learner")
        size = self._restored_from.num_bytes if self._restored_from else 0
        self._expected_seconds = size / _BYTES_PER_SECOND
        # Learner steps and environment steps of the newest checkpoint, and of the one being saved.
        self._saved: tuple[int, int] | None = None
        self._begun: tuple[int, int] | None = None
        self._begun_at = time.monotonic()
        self._save_at = self._begun_at + seconds
        self._unsaved_since: float | None = None
        self._save_learner_at = self._begun_at + _LEARNER_SECONDS
        self._saved_learner: int | None = None
        self._copy_seconds = 0.0

    @contextlib.contextmanager
    def completed(self) -> Iterator[None]:
        """Waits at the end for the saves in progress; raises their error if none was raised."""
        with self._checkpointer, self._learner_only:
            yield

    @property
    def saved_environment_steps(self) -> int:
        """Environment steps of the newest complete checkpoint; 0 if nothing was saved yet."""
        return self._saved[1] if self._saved else 0

    def restore(self) -> None:
        """Restores the learner from its newest save, if there is one.

        Raises:
          CheckpointError: if the newest checkpoint does not fit.
        """
        checkpoint = self._restored_from
        if not self._restore_learner_only(checkpoint.step if checkpoint else -1):
            if checkpoint is None:
                return
            self._checkpointer.restore(self._learner_part(), checkpoint)
        self._learner.refresh()

    def _restore_learner_only(self, step: int) -> bool:
        """Restores the learner if it was saved alone after `step`; returns whether it was."""
        try:
            latest = self._learner_only.latest()
            if latest is None or latest.step <= step:
                return False
            self._learner_only.restore(self._learner_part())
        except CheckpointError as error:  # The checkpoint of the whole run is older, but intact.
            _LOG.warning("the learner continues from the newest checkpoint: %s", error)
            return False
        return True

    def tick(self) -> None:
        """Begins a save if one is due; called by the learner between its steps.

        Raises:
          CheckpointError: if the last save failed.
          Diverged: if a save is due, and a variable holds NaN or infinity.
          ReplayError: if the replay has not been saved for ten minutes.
        """
        if not self._checkpointer.is_saving:
            self._finish()
            if time.monotonic() >= self._save_at:
                self.begin()
                return
        if time.monotonic() >= self._save_learner_at and not self._learner_only.is_saving:
            self.begin_learner()

    def begin_learner(self) -> None:
        """Copies the state of the learner alone, and begins to save it.

        Raises:
          CheckpointError: if the last save of the learner failed.
          Diverged: if a variable holds NaN or infinity.
        """
        self._learner_only.wait()
        busy = self._copy_seconds + self._learner_only.write_seconds
        started, steps = time.monotonic(), self._learner.num_steps
        self._save_learner_at = started + max(_LEARNER_SECONDS, _PAUSE_PER_LEARNER * busy)
        if steps == self._saved_learner:
            return
        state = finite_state(self._learner, self._checkpointer)
        self._learner_only.begin_save(steps, {"learner": state})
        self._copy_seconds, self._saved_learner = time.monotonic() - started, steps

    def begin(self) -> None:
        """Copies the state and begins to save it, unless the newest checkpoint holds it already.

        Raises:
          Diverged: if a variable holds NaN or infinity.
        """
        steps = self._learner.num_steps
        # The counter's number of learner steps may be a second old.
        progress = {**self._counter.snapshot(), "learner_steps": steps}
        state = (steps, progress["environment_steps"])
        self._begun_at = time.monotonic()
        self._save_at = self._begun_at + self._seconds
        if self._saved == state:
            return
        learner = finite_state(self._learner, self._checkpointer)
        _last_step_marker(self._run_dir).unlink(missing_ok=True)
        self._checkpointer.begin_save(
            steps,
            {
                **self._replay_parts(),  # First, so that little is inserted before it is written.
                "learner": learner,
                "weights": WeightsPart(self._learner.get_variables(self._learner.network_names)),
                "progress": JsonValue(progress),
            },
        )
        self._begun = state

    def save_last(self) -> bool:
        """Saves the final state, and waits until the checkpoint is complete.

        `holds_last_step` is then true of the run.

        Returns:
          False if the replay cannot be saved now.

        Raises:
          CheckpointError: see `tick`.
          ReplayError: see `tick`.
        """
        self._finish()  # If that save failed, the replay may be back by now.
        self.begin()
        if not self._finish():
            return False
        mark_last_step(self._run_dir)
        return True

    def _finish(self) -> bool:
        """Waits for the save that was begun, if any; returns False if the replay was not saved."""
        if self._begun is None:
            return True
        state, self._begun = self._begun, None
        try:
            self._checkpointer.wait()
        except ReplayError as error:
            now = time.monotonic()
            self._unsaved_since = self._unsaved_since or now
            if now - self._unsaved_since > _SECONDS_WITHOUT_REPLAY:
                raise
            _LOG.warning("not saved: %s", error)
            self._save_at = now + SECONDS_BETWEEN_TRIES
            return False
        self._saved, self._unsaved_since = state, None
        self._expected_seconds = self._checkpointer.write_seconds
        pause = max(self._seconds, _PAUSE_PER_WRITING * self._expected_seconds)
        self._save_at = self._begun_at + pause
        return True

    def _learner_part(self) -> dict[str, TrackablePart]:
        return {"learner": TrackablePart(**self._learner.trackables())}

    def _replay_parts(self) -> dict[str, ReplayPart | SameReplayPart]:
        is_long = self._expected_seconds > _SECONDS_TO_SAVE_IN_HASTE
        names = [part_name(shard) for shard in range(len(self._replays))]
        if lp.stop_event().is_set() and is_long:
            # There is no time to verify the replay.
            earlier = self._checkpointer.newest_intact("progress")
            if earlier is not None:
                return {name: SameReplayPart(earlier.path / name) for name in names}
        return dict(zip(names, map(ReplayPart, self._replays), strict=True))


def mark_last_step(run_dir: Path) -> None:
    """Notes that the newest checkpoint holds the program's last step.

    Args:
      run_dir: directory of the run.
    """
    marker = _last_step_marker(run_dir)
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.touch()


def holds_last_step(run_dir: Path) -> bool:
    """Whether the newest checkpoint holds the last step of a program, which has ended.

    Args:
      run_dir: directory of the run.
    """
    return _last_step_marker(run_dir).exists()


def _last_step_marker(run_dir: Path) -> Path:
    return program_folder(run_dir) / "last_step"
