"""Event files of TensorBoard, written in the calling thread."""

import pathlib
import re
import socket
import struct
import time

import numpy as np

_PREFIX = "events.out.tfevents."


class EventFile:
    """Scalars and images for TensorBoard.

    tensorboardX's own `SummaryWriter` passes them to a thread. If that thread cannot write, for
    example because the disk is full, it ends, and after ten more values every caller blocks
    forever. Here the caller writes and gets the error. tensorboardX's file writer is not used
    either: whenever it passes data to the operating system, it waits for the disk, which is too
    slow for each row.
    """

    def __init__(self, folder: pathlib.Path, purge_step: int | None):
        """Creates a new file.

        Args:
          folder: created if it does not exist; its files form one curve.
          purge_step: TensorBoard hides points of earlier files from this step on; None for none.

        Raises:
          OSError: if the file cannot be written.
        """
        # Imported here because it is slow, and only a process that writes needs it.
        from tensorboardX import record_writer, summary
        from tensorboardX.proto import event_pb2

        self._summary, self._events = summary, event_pb2
        self._checksum = record_writer.masked_crc32c
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{_PREFIX}{_next_second(folder):010d}.{socket.gethostname()}"
        self._file = (folder / name).open("wb")
        self._write(file_version="brain.Event:2")
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(session_log=start, step=purge_step)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Adds a point to a curve.

        Args:
          name: name of the curve.
          value: its value.
          step: its position.

        Raises:
          OSError: if it cannot be written.
        """
        self._write(summary=self._summary.scalar(name, value), step=step)

    def add_image(self, name: str, image: np.ndarray, step: int) -> None:
        """Adds an image.

        Args:
          name: its name.
          image: [height, width, channels] uint8, with 1 or 3 channels.
          step: its position.

        Raises:
          OSError: if it cannot be written.
        """
        self._write(summary=self._summary.image(name, image, dataformats="HWC"), step=step)

    def flush(self) -> None:
        """Passes what was added to the operating system, which keeps it if this process is killed.

        Raises:
          OSError: if it cannot be written.
        """
        self._file.flush()

    def close(self) -> None:
        """Passes everything to the operating system and closes the file.

        Raises:
          OSError: if it cannot be written.
        """
        self._file.close()

    def _write(self, **fields: object) -> None:
        data = self._events.Event(wall_time=time.time(), **fields).SerializeToString()
        size = struct.pack("<Q", len(data))
        for part in (size, data):
            self._file.write(part + struct.pack("<I", self._checksum(part)))


def _next_second(folder: pathlib.Path) -> int:
    """Returns the time of a new file, in seconds, which is later than that of all others.

    TensorBoard reads the files in the order of their names, and the clock may have been set back.
    """
    found = (re.match(rf"{re.escape(_PREFIX)}(\d+)\.", path.name) for path in folder.iterdir())
    return max(int(time.time()), *(int(name[1]) + 1 for name in found if name), 0)
