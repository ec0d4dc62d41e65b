"""Frames that the replay refuses; test_adder_reference.py compares episodes with a reference."""

import dm_env
import numpy as np
import pytest
import reverb
from acme import specs

from agents.replay.frames import FrameLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import make_adder, make_table

SHAPE = (6, 5, 3)
SPEC = make_spec(specs.BoundedArray(SHAPE, np.uint8, 0, 255))


def test_frames_of_another_kind_are_named():
    layout = FrameLayout(SPEC, 3, 3, 4)
    server = reverb.Server([make_table(layout)])
    adder = make_adder(server, layout, n_step=3)
    with pytest.raises(ValueError, match=r"observation of shape \(6, 5, 3\) and dtype uint8"):
        adder.add_first(dm_env.restart(np.zeros(SHAPE, np.float32)))
    with pytest.raises(ValueError, match=r"action of shape \(2,\)"):
        adder.add_first(dm_env.restart(np.zeros(SHAPE, np.uint8)))
        adder.add(np.zeros(1, np.float32), dm_env.transition(1.0, np.zeros(SHAPE, np.uint8)))
    server.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observations": specs.Array((4,), np.uint8)}, "make the environment with `pixels=`"),
        ({"actions": specs.Array((2, 1), np.float32)}, "wrap the environment"),
    ],
)
def test_environments_without_frames_or_flat_actions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        FrameLayout(SPEC._replace(**changes), 3, 3, 4)
