"""The agent's observations as images for TensorBoard."""

import numpy as np


def strip(observation: np.ndarray | None) -> np.ndarray | None:
    """Returns the frames of an observation side by side, the oldest on the left.

    Args:
      observation: observation of an agent; None if it provides none.

    Returns:
      uint8 [H, W * S, 3] for S stacked frames of shape [H, W, 3 * S]; None if the observation is
      not a stack of frames.
    """
    if observation is None or observation.ndim != 3 or observation.dtype != np.uint8:
        return None
    height, width, channels = observation.shape
    frames = observation.reshape(height, width, channels // 3, 3)
    return frames.transpose(0, 2, 1, 3).reshape(height, -1, 3)
