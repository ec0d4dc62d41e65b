"""An estimate of the memory of a replay; for frames, it is measured on frames of the task."""

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import dm_env
import numpy as np
import tensorflow as tf

from agents.replay.frames import FrameLayout
from environments.flat import frame_of, random_policy

# Bytes in addition to the frames, in table and allocator: per item, however many transitions it
# has, and per transition. Fitted to measurements with chunks of 4.
_BYTES_PER_ITEM = 1_500
_BYTES_PER_TRANSITION = 250
_FRAMES = 60


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """The estimated memory of a replay.

    Attributes:
      transitions: number of transitions at the end of the run, as the table counts them.
      bytes_each: estimated bytes of one transition.
      basis: how the estimate was made, for messages.
    """

    transitions: int
    bytes_each: float
    basis: str

    @property
    def num_bytes(self) -> float:
        """Estimated bytes of all transitions."""
        return self.transitions * self.bytes_each

    def __str__(self) -> str:
        return (
            f"{_gigabytes(self.num_bytes)} for {self.transitions:,} transitions, "
            f"{self.bytes_each:,.0f} bytes each ({self.basis})"
        )

    def excess(self, available: float) -> str:
        """Returns a message for the user if the replay does not fit into the memory, else "".

        Args:
          available: free memory in bytes.
        """
        if self.num_bytes <= available:
            return ""
        fitting = int(available / self.bytes_each)
        return (
            f"expected a replay that fits into the {_gigabytes(available)} of free memory, got "
            f"{self}; lower --agent.replay.max-size below {fitting:,}"
        )


def estimate(
    environment: dm_env.Environment, inserts: int, max_size: int, layout: FrameLayout
) -> MemoryEstimate:
    """Estimates the memory of a replay from the compressed frames of random actions.

    An item counts as L transitions, however many of them are repeated; a window of several steps,
    as those by which it follows the one before.

    Args:
      environment: environment whose observations have single uint8 frames.
      inserts: the largest number of transitions that the run inserts, without repeated ones.
      max_size: the table's capacity in transitions.
      layout: the layout of the replay.

    Returns:
      The estimate.
    """
    length = layout.period
    actions = num_bytes = items = 0.0
    for frames, is_complete in _play(environment, np.random.default_rng(0)):
        steps = len(frames) - 1
        differences = frames - frames[0]
        columns, rows, own_items = [differences[1:]], float(steps), steps / length
        # What every episode stores once is left out for an unfinished one, whose length is unknown.
        if is_complete:
            rows, own_items = max(steps, length), math.ceil(steps / length)
            # As `FrameWriter` stores them.
            padding = (layout.stack - 1, layout.n_step - 1 + max(0, length - steps))
            padded = np.pad(differences, (padding, (0, 0), (0, 0), (0, 0)), mode="edge")
            columns = [frames[:1], padded]
        items += own_items
        actions += steps
        num_bytes += rows * (_BYTES_PER_TRANSITION + 4 * layout.vector_size)
        num_bytes += sum(_compressed(column, layout.chunk_length) for column in columns)
    num_bytes += items * _BYTES_PER_ITEM
    bytes_each = num_bytes / (items * length)
    transitions = min(math.ceil(inserts * (items * length / actions)), max_size)
    ratio = math.prod(layout.frame_shape) / bytes_each
    basis = f"{ratio:.1f} : 1 as measured on {actions:.0f} frames of random actions"
    return MemoryEstimate(transitions, bytes_each, basis)


def _compressed(frames: np.ndarray, chunk_length: int) -> int:
    """Returns the bytes of frames in compressed chunks."""
    # Reverb compresses with Snappy, as does this operation of tf.data.
    chunks = [frames[i : i + chunk_length] for i in range(0, len(frames), chunk_length)]
    return sum(
        len(tf.io.serialize_tensor(tf.raw_ops.CompressElement(components=[chunk])).numpy())
        for chunk in chunks
    )


def _play(
    environment: dm_env.Environment, random: np.random.Generator
) -> Iterator[tuple[np.ndarray, bool]]:
    """Plays `_FRAMES` random actions.

    Yields:
      The frames [T + 1, H, W, C] of an episode of T actions, and whether it has ended.
    """
    act = random_policy(environment, random)
    timestep = environment.reset()
    frames = [frame_of(timestep.observation)]
    for _ in range(_FRAMES):
        if timestep.last():
            yield np.stack(frames), True
            timestep = environment.reset()
            frames = [frame_of(timestep.observation)]
        timestep = environment.step(act(timestep.observation))
        frames.append(frame_of(timestep.observation))
    yield np.stack(frames), timestep.last()


def available_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Returns the bytes that this process may still allocate, on the machine or in its cgroup.

    Args:
      group: folder of the cgroup.

    Returns:
      Bytes; infinity if they are unknown.
    """
    available = [float("inf")]
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available.append(1024.0 * int(line.split()[1]))
        limit, used = (group / "memory.max").read_text(), (group / "memory.current").read_text()
        if limit.strip() != "max":
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            # The kernel can reclaim inactive cached files; MemAvailable includes them, too.
            available.append(float(limit) - float(used) + float(stat["inactive_file"]))
    except OSError:
        pass
    return min(available)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
