"""Stacks of frames, as an actor sees them."""

import numpy as np

from agents.acting.acting_policy import FrameStack
from agents.nodes.evaluator import frame_strip


def test_an_actor_stacks_frames_and_the_strip_shows_them():
    history, buffer = FrameStack(3), np.zeros((2, 2, 3), np.uint8)
    history.reset()
    seen = []
    for value in range(4):
        buffer[:] = value  # As a camera's driver does.
        seen.append(history.observe(buffer))
    assert [s[0, 0, ::3].tolist() for s in seen] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert frame_strip(seen[-1])[0, :, 0].tolist() == [1, 1, 2, 2, 3, 3]
    history.reset()
    both = history.observe({"pixels": buffer, "vector": "unchanged"})
    assert both["pixels"][0, 0, ::3].tolist() == [3, 3, 3] and both["vector"] == "unchanged"
    assert frame_strip(np.zeros(4, np.float32)) is None
