"""Finite data, padded and masked so that every example counts exactly once."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step.inputs import contract, datasets, device_rows
from rl_replicator.step.inputs import pump as pump_lib


class PaddedInputs(datasets.DatasetInputs):
    """Finite data up to its last example, for evaluation.

    `step_fn` receives `(element, mask)`: every batch is padded with zeros to the same size, and
    `mask`, [batch] float32, is 1 for an example and 0 for padding. Replicas and processes whose
    data has ended receive padding until all data has ended.
    """

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        per_replica_batch_size: int,
        devices: Sequence[str] = (),
    ):
        """Reads nothing yet.

        Args:
          sources: one dataset for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
          per_replica_batch_size: number of examples in a padded batch.
          devices: see `DatasetInputs`.

        Raises:
          ConfigError: if the elements are not batches of dense tensors of known shapes, or are
            larger than a padded batch.
        """
        spec = tf.nest.map_structure(
            lambda s: padded_spec(s, per_replica_batch_size), sources[0].element_spec
        )
        self._batch_size = per_replica_batch_size
        mask_spec = tf.TensorSpec([per_replica_batch_size], tf.float32)
        super().__init__(sources, num_replicas, spec=(spec, mask_spec), devices=devices)

    def combine_statuses(self, counts: tf.Tensor) -> tf.Tensor:
        all_ended = tf.equal(counts[contract.END], tf.reduce_sum(counts))
        others = tf.tensor_scatter_nd_update(counts, [[contract.END]], [0])
        return tf.where(all_ended, contract.END, super().combine_statuses(others))

    def _new_mover(self) -> pump_lib.Mover:
        return _PaddingMover(
            self._datasets, self._num_replicas, self._rows, self.specs, self._batch_size
        )


class _PaddingMover(pump_lib.Mover):
    """Pads each batch, and continues with padding after the end of the data."""

    def __init__(
        self,
        sources: Sequence[tf.data.Dataset],
        num_replicas: int,
        rows: device_rows.DeviceRows,
        specs: Sequence[tf.TensorSpec],
        batch_size: int,
    ):
        super().__init__(sources, num_replicas, rows)
        self._specs = specs
        self._batch_size = batch_size

    def move(self, queue: tf.queue.FIFOQueue, stop: tf.queue.FIFOQueue, position: int) -> None:
        try:
            super().move(queue, stop, position)
        except tf.errors.InvalidArgumentError as error:
            # TensorFlow adds text around the message.
            for known in (_too_large("more", self._batch_size), _unequal()):
                if str(known) in str(error):
                    raise known from None
            raise

    def _row(self, iterators: Sequence[Any]) -> tuple[tf.Tensor, list[Any]]:
        # When the data of this process has ended, others may still have data. Until theirs has
        # ended, too, this process takes steps on padding.
        row, found = [], []
        width = len(self._specs) // self._num_replicas
        for i in range(self._num_replicas):
            optional = iterators[i % len(iterators)].get_next_as_optional()
            found.append(optional.has_value())
            row.extend(
                tf.cond(
                    found[-1],
                    lambda optional=optional: pad(optional.get_value(), self._batch_size),
                    lambda: [tf.zeros(s.shape, s.dtype) for s in self._specs[:width]],
                )
            )
        return tf.where(tf.reduce_any(found), contract.ELEMENT, contract.END), row


def pad(element: Any, batch_size: int) -> list[tf.Tensor]:
    """Pads a batch with zeros to a fixed number of examples.

    Args:
      element: nest of tensors [B, ...], B <= `batch_size`.
      batch_size: number of examples after padding.

    Returns:
      The flat tensors [batch_size, ...], then the mask, [batch_size] float32: 1 for an example, 0
      for padding.

    Raises:
      InvalidArgumentError: when the graph runs, if the batch is larger than `batch_size`, or its
        tensors have different lengths.
    """
    flat = tf.nest.flatten(element)
    size = tf.shape(flat[0])[0]
    missing = batch_size - size
    checks = [tf.debugging.assert_equal(tf.shape(x)[0], size, str(_unequal())) for x in flat[1:]]
    checks.append(tf.debugging.assert_non_negative(missing, str(_too_large("more", batch_size))))
    # Without this dependency, the checks and the padding race, and the padding may fail first, with
    # another error.
    with tf.control_dependencies([check for check in checks if check is not None]):
        missing = tf.identity(missing)
    flat.append(tf.ones([size]))
    return [tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1)) for x in flat]


def padded_spec(spec: Any, batch_size: int) -> tf.TensorSpec:
    """Returns the spec of a tensor after `pad`.

    Args:
      spec: spec of the tensor before padding, [None or B, ...].
      batch_size: number of examples after padding.

    Raises:
      ConfigError: if the tensor is no batch, the batch is too large, or its examples may differ in
        shape.
    """
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank or None in spec.shape[1:]:
        raise errors.ConfigError(
            f"expected batches of dense tensors of known shapes to pad, got {spec}; "
            "batch() examples of known shapes, once"
        )
    if spec.shape[0] is not None and spec.shape[0] > batch_size:
        raise _too_large(spec.shape[0], batch_size)
    return tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype)


def _too_large(found: Any, batch_size: int) -> errors.ConfigError:
    return errors.ConfigError(
        f"expected batches of at most {batch_size} examples to pad, got {found}; batch the data "
        "with context.per_replica_batch_size(global_batch_size)"
    )


def _unequal() -> errors.ConfigError:
    return errors.ConfigError(
        "expected tensors of one length in a batch to pad, got different ones; give each tensor an "
        "entry for each example"
    )
