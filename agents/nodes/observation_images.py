"""What an agent sees, for those who watch its run in TensorBoard."""

from pathlib import Path
from typing import Any

import numpy as np


def strip(observation: np.ndarray) -> np.ndarray | None:
    """The frames of an observation side by side, the oldest on the left.

    Args:
      observation: of an agent.

    Returns:
      uint8 [H, W * S, 3] for S stacked frames of shape [H, W, 3 * S]; None where an observation
      is no picture.
    """
    if observation.ndim != 3 or observation.dtype != np.uint8:
        return None
    height, width, channels = observation.shape
    frames = observation.reshape(height, width, channels // 3, 3)
    return frames.transpose(0, 2, 1, 3).reshape(height, -1, 3)


class PictureWriter:
    """Writes `run_dir/tensorboard/pictures/`; touches no file before the first picture."""

    def __init__(self, run_dir: Path, resume_step: int):
        """Args:
        run_dir: of the run.
        resume_step: where a resumed run goes on; later pictures of before are hidden.
        """
        self._folder = run_dir / "tensorboard" / "pictures"
        self._resume_step = resume_step
        self._board: Any = None

    def write(self, name: str, step: int, picture: np.ndarray) -> None:
        """Adds a picture, uint8 [height, width, 3]."""
        if self._board is None:
            import tensorboardX  # Here, because runs from state do without it.

            self._board = tensorboardX.SummaryWriter(
                str(self._folder), flush_secs=1, purge_step=self._resume_step + 1
            )
        self._board.add_image(name, picture, step, dataformats="HWC")
