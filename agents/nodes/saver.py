"""Saves the checkpoints of a run while its learner trains."""

import logging
import time
from collections.abc import Sequence

import reverb

import launchpad as lp
from agents.agent import AgentLearner
from agents.learning.weights import WeightsPart
from agents.nodes.counter import Counter
from agents.replay.checkpoint import ReplayError, ReplayPart, SameReplayPart, part_name
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart, TrackablePart

_LOG = logging.getLogger("agents")

# Ctrl-C ends a program within ten seconds: if the replay takes longer than this to write, the last
# checkpoint links the replay of the one before.
_SECONDS_TO_SAVE_IN_HASTE = 3.0
# A replay that died is restarted; if nothing can be saved for this long, the run fails.
_SECONDS_WITHOUT_REPLAY = 600.0
SECONDS_BETWEEN_TRIES = 2.0
# A low estimate, which tells a table that is saved in a second from one that takes ten.
_BYTES_PER_SECOND = 1.5e7
# A large table takes seconds to write, which occupies processors and disk: saves take at most a
# twentieth of the time.
_PAUSE_PER_WRITING = 20.0


class Saver:
    """Saves checkpoints of everything: replay, learner, counters, random generators.

    The learner stands still while its state is copied. The copy and the replay are written in the
    background, so the replay holds slightly newer rows than the counters say.
    """

    def __init__(
        self,
        checkpointer: Checkpointer,
        learner: AgentLearner,
        replays: Sequence[reverb.Client],
        counter: Counter,
        seconds: float,
    ):
        """Saves nothing yet.

        Args:
          checkpointer: the checkpointer of the run.
          learner: the learner.
          replays: clients of the replay servers.
          counter: knows the progress of the run.
          seconds: time between two checkpoints.
        """
        self._checkpointer = checkpointer
        self._learner = learner
        self._replays = replays
        self._counter = counter
        self._seconds = seconds
        latest = checkpointer.latest()
        self._expected_seconds = latest.num_bytes / _BYTES_PER_SECOND if latest else 0.0
        # Learner steps and environment steps of the newest checkpoint, and of the one being saved.
        self._saved: tuple[int, int] | None = None
        self._begun: tuple[int, int] | None = None
        self._begun_at = time.monotonic()
        self._save_at = self._begun_at + seconds
        self._unsaved_since: float | None = None

    def tick(self) -> None:
        """Begins a save if one is due; called by the learner between its steps.

        Raises:
          CheckpointError: if the last save failed.
          ReplayError: if the replay has not been saved for ten minutes.
        """
        if self._checkpointer.is_saving:
            return
        self._finish()
        if time.monotonic() >= self._save_at:
            self.begin()

    def begin(self) -> None:
        """Copies the state and begins to save it, unless the newest checkpoint holds it."""
        steps = self._learner.num_steps
        # The counter's number of learner steps may be a second old.
        progress = {**self._counter.snapshot(), "learner_steps": steps}
        state = (steps, progress["environment_steps"])
        self._begun_at = time.monotonic()
        self._save_at = self._begun_at + self._seconds
        if self._saved == state:
            return
        self._checkpointer.begin_save(
            steps,
            {
                **self._replay_parts(),  # First, so that little is inserted before it is written.
                "learner": TrackablePart(**self._learner.trackables()),
                "weights": WeightsPart(self._learner.get_variables(self._learner.network_names)),
                "progress": JsonPart(lambda: progress, lambda _: None),
            },
        )
        self._begun = state

    def save_last(self) -> bool:
        """Saves the final state, and waits until the checkpoint is complete.

        Returns:
          False if the replay cannot be saved now.

        Raises:
          CheckpointError: see `tick`.
          ReplayError: see `tick`.
        """
        if not self._finish():
            return False
        self.begin()
        return self._finish()

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

    def _replay_parts(self) -> dict[str, ReplayPart | SameReplayPart]:
        latest = self._checkpointer.latest()
        is_long = self._expected_seconds > _SECONDS_TO_SAVE_IN_HASTE
        in_haste = lp.stop_event().is_set() and is_long
        return {
            part_name(shard): SameReplayPart(latest.path / part_name(shard))
            if in_haste and latest is not None
            else ReplayPart(replay)
            for shard, replay in enumerate(self._replays)
        }
