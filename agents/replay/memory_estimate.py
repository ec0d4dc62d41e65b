"""An estimate of the memory of a replay; of frames, it is measured on frames of the task."""

import dataclasses
from pathlib import Path

import dm_env
import numpy as np
import tensorflow as tf

# Bytes besides the frames, in table and allocator: of an item, however many transitions it has, and
# of each of its transitions. Fitted to `bench/results/pixel_replay.json`, chunks of 4.
_BYTES_PER_ITEM = 1_500
_BYTES_PER_TRANSITION = 250
_FRAMES = 60


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """The estimated memory of a replay.

    Attributes:
      transitions: number of transitions at the end of the run.
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
        """Returns what to tell the user if the replay does not fit into the memory, else "".

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
    environment: dm_env.Environment, transitions: int, chunk_length: int, item_length: int
) -> MemoryEstimate:
    """Estimates the memory of a replay from the compressed frames of random actions.

    Args:
      environment: environment whose observations are single uint8 frames.
      transitions: number of transitions at the end of the run.
      chunk_length: number of frames that are compressed together.
      item_length: number of transitions in an item of the table.

    Returns:
      The estimate.
    """
    frames = _play(environment, np.random.default_rng(0))
    # Reverb compresses with Snappy, as does this operation of tf.data.
    chunks = [frames[i : i + chunk_length] for i in range(0, len(frames), chunk_length)]
    compressed = sum(
        len(tf.io.serialize_tensor(tf.raw_ops.CompressElement(components=[chunk])).numpy())
        for chunk in chunks
    )
    bytes_each = compressed / len(frames) + _BYTES_PER_ITEM / item_length + _BYTES_PER_TRANSITION
    ratio = frames[0].nbytes / bytes_each
    basis = f"{ratio:.1f} : 1 as measured on {len(frames)} frames of random actions"
    return MemoryEstimate(transitions, bytes_each, basis)


def _play(environment: dm_env.Environment, random: np.random.Generator) -> np.ndarray:
    """Returns differences of frames from their episode's first, as stored: [T, H, W, C] uint8."""
    shape = environment.action_spec().shape
    differences: list[np.ndarray] = []
    first = timestep = environment.reset()
    while len(differences) < _FRAMES:
        if timestep.last():
            first = timestep = environment.reset()
        timestep = environment.step(random.uniform(-1, 1, shape).astype(np.float32))
        differences.append(timestep.observation - first.observation)
    return np.stack(differences)


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
            # The kernel gives up cached files that nobody reads, as it does for MemAvailable.
            available.append(float(limit) - float(used) + float(stat["inactive_file"]))
    except OSError:
        pass
    return min(available)


def _gigabytes(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
