"""What the processes of a group send to each other by TensorFlow's collectives besides gradients.

The collectives have no timeouts, because TensorFlow would keep a thread for each of them until its
timeout, even if the collective ends immediately. The caller must abort collectives that hang.
"""

import collections
import threading
import zlib

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.collectives import sums

# Every message begins with a block of this many int32: the checksum of its kind, its length, and
# its first bytes.
_BLOCK = 256
_HEADER = 2
_BYTES_IN_BLOCK = 4 * (_BLOCK - _HEADER)
# One key for each width of a sum; widths are powers of two.
_KEYS_OF_A_SUM = 32


class MessageChannel:
    """Gathers a message from every process; one gather at a time.

    TensorFlow keeps the key and the shape of each collective forever. So the key of a gather is its
    width, and widths are powers of two, so that there are few of them.
    """

    def __init__(self, group_key: int, names: list[str], index: int, device: str):
        """Communicates nothing yet.

        Args:
          group_key: TensorFlow's group key of this channel, equal in all processes.
          names: names of the processes, in the order of their indices.
          index: index of this process.
          device: full name of this process's device.
        """
        self._group_key = group_key
        self._names = names
        self._index = index
        self._device = device
        self._lock = threading.Lock()
        # TensorFlow never frees some of the memory of a collective that runs eagerly.
        self._compiled = tf.function(self.gather_tensor, autograph=False)

    def gather(self, kind: str, payload: bytes) -> list[bytes]:
        """Returns the payloads of all processes, in the order of their indices.

        Args:
          kind: describes the call; equal in all processes of a correct program.
          payload: message of this process, shorter than 2**31 bytes.

        Raises:
          ConfigError: if another process makes a call of another kind.
          OpError: if the collectives were aborted.
        """
        with self._lock:
            header = np.array([zlib.crc32(kind.encode()) & 0x7FFFFFFF, len(payload)], np.int32)
            first = payload[:_BYTES_IN_BLOCK].ljust(_BYTES_IN_BLOCK, b"\0")
            blocks = self._gathered(np.concatenate([header, np.frombuffer(first, np.int32)]))
            self._check_kinds(kind, blocks[:, 0])
            lengths = blocks[:, 1]
            messages = [block[_HEADER:].tobytes() for block in blocks]
            missing = int(lengths.max()) - _BYTES_IN_BLOCK
            if missing > 0:
                width = max(2 * _BLOCK, 1 << (-(-missing // 4) - 1).bit_length())
                rest = payload[_BYTES_IN_BLOCK:].ljust(4 * width, b"\0")
                rows = self._gathered(np.frombuffer(rest, np.int32))
                messages = [m + row.tobytes() for m, row in zip(messages, rows, strict=True)]
        return [m[:length] for m, length in zip(messages, lengths, strict=True)]

    def gather_tensor(self, values: tf.Tensor) -> tf.Tensor:
        """Gathers a small vector from every process. Can be traced.

        Args:
          values: [width] int32, of a static width below 256; messages are at least 256 wide.

        Returns:
          [processes, width] int32.
        """
        size, width = len(self._names), values.shape[0]
        with tf.device(self._device):
            gathered = tf.raw_ops.CollectiveGatherV2(
                input=values,
                group_size=size,
                group_key=self._group_key,
                instance_key=width,
                ordering_token=[],
                communication_hint="ring",
            )
            return tf.reshape(gathered, [size, width])

    def _gathered(self, values: np.ndarray) -> np.ndarray:
        with tf.init_scope(), tf.device(self._device):
            return self._compiled(values).numpy()

    def _check_kinds(self, kind: str, codes: np.ndarray) -> None:
        for index in np.flatnonzero(codes != codes[self._index]):
            raise errors.ConfigError(
                "expected all processes to make the same calls in the same order, but "
                f"{self._names[self._index]} calls {kind} and {self._names[index]} makes another "
                "call; make the same calls in every process"
            )


class ChangingSums:
    """Sums vectors, such as the rows of sparse gradients, inside of traced steps.

    TensorFlow binds the key of a collective to the shape of its first message. So a vector is
    padded to the next power of two, and sent under the key of that width.
    """

    def __init__(self, group_key: int, strategy: tf.distribute.Strategy):
        """Registers itself for the steps of a strategy.

        Args:
          group_key: TensorFlow's group key of these collectives, equal in all processes.
          strategy: strategy of the replicas.
        """
        self._group_key = group_key
        self._next_keys: dict[int, int] = collections.defaultdict(int)
        sums.sum_changing_with(strategy, self.total)

    def number(self, first: int) -> None:
        """Sets the key of the next sum traced on each replica; the keys of later sums increase."""
        self._next_keys = collections.defaultdict(lambda: first)

    def total(self, x: tf.Tensor, length: tf.Tensor) -> tf.Tensor:
        """Sums a vector over replicas. Call it on a replica while a step is traced.

        Args:
          x: [length] float32, float64 or int64.
          length: int32 scalar, equal on all replicas.

        Returns:
          The sum, [length].
        """
        replica = int(tf.get_static_value(sums.replica_id()))
        first_key = self._next_keys[replica]
        self._next_keys[replica] += _KEYS_OF_A_SUM
        # The number of powers of two below the length is its binary logarithm, rounded up.
        exponent = tf.reduce_sum(tf.cast(length > [1 << i for i in range(31)], tf.int32))
        added = tf.raw_ops.CollectiveReduceV2(
            input=tf.pad(x, [[0, tf.bitwise.left_shift(1, exponent) - length]]),
            group_size=sums.num_replicas(),
            group_key=self._group_key,
            instance_key=first_key + exponent,
            ordering_token=[],
            merge_op="Add",
            final_op="Id",
            # NCCL would require one order of these and the strategy's own collectives.
            communication_hint="ring",
        )
        return added[:length]
