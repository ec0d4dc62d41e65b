"""The parts of a tiny agent are measured on real tables; no figure is compared with a clock."""

import dataclasses
import math
import os

import pytest

from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig, PixelD4PGConfig
from agents.plan import measurement
from agents.plan.parts import Parts
from agents.replay.config import FrameReplayConfig, ReplayConfig
from agents.task import Task
from environments import PixelConfig

# Two processes import TensorFlow, and two learners are compiled.
pytestmark = pytest.mark.timeout(300)

CONFIG = D4PGConfig(
    policy_layers=(6,),
    critic_layers=(7,),
    num_atoms=11,
    value_min=0.0,
    global_batch_size=8,
    steps_per_call=2,
    # This table's own limiter would block after a few rows. A single server would need size 16.
    replay=ReplayConfig(priority_exponent=0.6, min_size=15, samples_per_insert=10.0),
)
# The chain has observations of 2 numbers, actions of 1, and episodes of 10 actions.
POLICY_BYTES = 4 * ((2 * 6 + 6) + (6 + 6) + (6 * 1 + 1))  # Two layers, and LayerNorm.
CRITIC_BYTES = 4 * ((3 * 7 + 7) + (7 + 7) + (7 * 11 + 11))


@pytest.fixture(scope="module")
def parts():
    task = Task("environments.fakes:chain")
    return measurement.measure(D4PG, CONFIG, task, "d4pg on a chain", {}, seconds=1.0, num_shards=2)


def test_everything_costs_something(parts):
    figures = dataclasses.asdict(parts)
    # Differences between measurements may be zero.
    may_vanish = {"policy_call", "policy_row", "step_call", "step_row"}
    may_vanish |= {"insert_thread", "insert_actor"}
    for name, figure in figures.items():
        if isinstance(figure, float):
            assert math.isfinite(figure) and figure >= 0, name
            assert figure > 0 or name in may_vanish, name
    assert parts.policy_call + parts.policy_row > 0
    assert 1 <= parts.step_threads <= len(os.sched_getaffinity(0))


def test_sizes_are_exact(parts):
    assert parts.episode_actions == 10
    assert parts.weight_bytes == POLICY_BYTES
    assert parts.gradient_bytes == POLICY_BYTES + CRITIC_BYTES
    # A row of 2 + 1 + 1 + 1 + 2 float32, and its overhead on the wire.
    assert 0 < parts.insert_bytes < 2000
    assert 0 < parts.sample_bytes < 4000


def test_windows_that_end_in_the_middle_of_an_episode():
    """Items of frames are longer than its episodes of 10 actions."""
    config = PixelD4PGConfig(
        policy_layers=(6,),
        critic_layers=(7,),
        feature_size=4,
        discount=0.9,
        n_step=1,
        frame_stack=2,
        global_batch_size=8,
        replay=FrameReplayConfig(transitions_per_item=16),
    )
    task = Task("environments.fakes:target", pixels=PixelConfig(height=24, width=24))
    parts = measurement.measure(D4PG, config, task, "d4pg on frames", {}, seconds=1.0, num_shards=1)
    assert parts.insert_bytes > 0 and parts.sample_bytes > 0


def test_parts_are_kept_in_a_file(parts, tmp_path):
    parts.save(tmp_path / "parts.json")
    assert Parts.load(tmp_path / "parts.json", "d4pg on a chain", {}) == parts
