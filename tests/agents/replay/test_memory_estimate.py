"""The prediction of the replay's size, on frames whose compressed size is known."""

import math

import dm_env
import numpy as np
import pytest
from acme import specs

from agents.replay.config import SequenceConfig
from agents.replay.frames import FrameLayout
from agents.replay.memory_estimate import MemoryEstimate, available_memory, estimate
from agents.replay.sequences import FrameSequenceLayout

SHAPE = (64, 64, 3)
FRAME_BYTES = 64 * 64 * 3


class Noise(dm_env.Environment):
    """Frames whose first rows are incompressible noise; the other rows are constant.

    The frame at time t of an episode has `rows[t]` noisy rows.
    """

    def __init__(self, rows):
        self._rows, self._random = rows, np.random.default_rng(0)

    def _observe(self):
        frame = np.full(SHAPE, 77, np.uint8)
        rows = self._rows[self._time]
        frame[:rows] = self._random.integers(0, 256, (rows, *SHAPE[1:]), dtype=np.uint8)
        return frame

    def reset(self):
        self._time = 0
        return dm_env.restart(self._observe())

    def step(self, action):
        self._time += 1
        if self._time == len(self._rows) - 1:
            return dm_env.truncation(0.0, self._observe())
        return dm_env.transition(0.0, self._observe())

    def observation_spec(self):
        return dm_env.specs.BoundedArray(SHAPE, np.uint8, 0, 255)

    def action_spec(self):
        return dm_env.specs.BoundedArray((1,), np.float32, -1.0, 1.0)


class Scenes(Noise):
    """Each episode shows a new, static scene of noise."""

    def _observe(self):
        if self._time == 0:
            self._scene = super()._observe()
        return self._scene


def estimated(environment, inserts=1000, max_size=10**6, chunk=4, length=1):
    """The estimate for stacks of 3 frames and returns over 3 steps."""
    layout = FrameLayout(specs.make_environment_spec(environment), 3, 3, chunk, (), length)
    return estimate(environment, inserts, max_size, layout)


@pytest.mark.parametrize(
    ("rows", "share"),
    [((64,) * 99, 1.0), ((32,) * 99, 0.5), ((0,) * 99, 0.0), ((0, *(0, 0, 64, 64) * 20), 0.5)],
    ids=["noise", "half noise", "still", "noise in every second frame"],
)
def test_the_prediction_is_of_frames_as_they_are_stored(rows, share):
    size = estimated(Noise(rows))
    assert size.num_bytes == 1000 * size.bytes_each
    ratio = FRAME_BYTES / size.bytes_each
    assert f"({ratio:.1f} : 1 as measured on 60 frames of random actions)" in str(size)
    # Snappy compresses a constant frame to 5 %; an item without frames takes 1,750 bytes.
    assert size.bytes_each - 1_750 == pytest.approx(share * FRAME_BYTES, abs=0.06 * FRAME_BYTES)


def test_an_item_of_several_transitions_is_shared():
    """Measured: 1,315 bytes less in items of 8 than in items of 1."""
    sizes = [estimated(Noise((0,) * 99), length=length).bytes_each for length in (1, 8)]
    assert sizes[0] - sizes[1] == pytest.approx(1315, rel=0.05)
    spec = specs.make_environment_spec(Noise((0,) * 99))
    windows = FrameSequenceLayout(spec, SequenceConfig(12, period=5, prefix=3), 3, 4)
    size = estimate(Noise((0,) * 99), 1000, 10**6, windows).bytes_each
    assert sizes[0] - size == pytest.approx(1500 * (1 - 1 / 5), rel=0.05)


@pytest.mark.parametrize(("actions", "length"), [(1, 8), (5, 1), (12, 8)])
def test_an_episode_has_a_whole_frame_and_repeated_ones(actions, length):
    size = estimated(Scenes((64,) * (actions + 1)), length=length)
    rows, items = max(actions, length), math.ceil(actions / length)
    still = (rows + 5) * FRAME_BYTES / 21  # Compressed, with those of the stack and the padding.
    episode = FRAME_BYTES + still + items * 1_500 + rows * 250
    assert size.num_bytes == pytest.approx(1000 * episode / actions, rel=0.03)
    # A table counts `length` transitions for each item.
    assert size.transitions == math.ceil(1000 * items * length / actions)
    full = estimated(Scenes((64,) * (actions + 1)), max_size=100, length=length)
    assert full.num_bytes == pytest.approx(100 / length * episode / items, rel=0.03)


def test_what_does_not_fit_is_told_with_the_size_that_would():
    size = MemoryEstimate(transitions=10, bytes_each=1e9, basis="as guessed")
    assert size.excess(10e9) == ""
    told = "10.0 GB of free memory, got 10.0 GB for 10 transitions, 1,000,000,000 bytes each (as gu"
    assert told in size.excess(9.99e9)
    assert size.excess(9.99e9).endswith("max-size below 9")


def test_cached_files_of_a_container_are_free_memory(tmp_path):
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    (tmp_path / "memory.stat").write_text("anon 700000\ninactive_file 1200000\nslab 1000\n")
    assert available_memory(tmp_path) == 1_700_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 1_700_000
