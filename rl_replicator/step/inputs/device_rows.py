"""Copies rows to the replicas' devices, ahead of the steps that use them."""

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# TensorFlow's GPU kernels take many int32 arguments, such as shapes, from the host's memory. The
# other dtypes have no GPU kernels.
_HOST_TYPES = (tf.int32, tf.string, tf.variant, tf.resource)

_names = itertools.count()


class DeviceRows:
    """Keeps the tensors of rows on the replicas' devices while the rows wait in the input's queue.

    The pump puts a row's tensors on the devices. Only the tensors that stay on the host go into the
    queue, with the row's number, by which a step that takes the entry gets the others. Thus copies
    to a device overlap with earlier steps. Without devices, the queue holds all tensors.

    Attributes:
      entry_specs: specs of the tensors of a row's entry in the queue.
    """

    def __init__(self, spec: Any, num_replicas: int, devices: Sequence[str] = ()):
        """Holds nothing yet.

        Args:
          spec: spec of one replica's part of a row, a nest.
          num_replicas: number of replicas of this process.
          devices: device of each replica; () to keep all tensors in the queue.
        """
        flat = tf.nest.flatten(spec, expand_composites=True)
        self._width = len(flat)
        self._held = _held(spec) if devices else []
        self._dtypes = [flat[i].dtype for i in self._held]
        self._rest = [i for i in range(self._width) if i not in self._held]
        # Each replica's tensors are in a TensorFlow map, identified by its name on its device.
        self._maps = {f"input_rows_{next(_names)}": device for device in devices}
        rest = [flat[i] for i in self._rest] * num_replicas
        number = [tf.TensorSpec([], tf.int64)] if self._held else []
        self.entry_specs: tuple[Any, ...] = (*number, *rest)

    def put(self, number: tf.Tensor, row: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Traced: puts a row on the devices.

        Args:
          number: int64 scalar that no other row has.
          row: flat tensors of all replicas, one after the other.

        Returns:
          The tensors to put into the queue; see `entry_specs`.
        """
        if not self._held:
            return list(row)
        parts = [row[i : i + self._width] for i in range(0, len(row), self._width)]
        places = tf.range(len(self._held))
        puts = []
        for (name, device), part in zip(self._maps.items(), parts, strict=True):
            with tf.device(device):
                puts.append(
                    tf.raw_ops.MapStage(
                        key=number,
                        indices=places,
                        values=[part[i] for i in self._held],
                        dtypes=self._dtypes,
                        shared_name=name,
                    )
                )
        with tf.control_dependencies(puts):  # A step that takes the entry must not wait for them.
            number = tf.identity(number)
        return [number, *(part[i] for part in parts for i in self._rest)]

    def get(self, entry: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Traced: takes a row from the devices.

        Args:
          entry: the tensors returned by `put`.

        Returns:
          The row's flat tensors.
        """
        if not self._held:
            return list(entry)
        number, *rest = entry
        places = tf.range(len(self._held))
        row: list[Any] = []
        for k, (name, device) in enumerate(self._maps.items()):
            part: list[Any] = [None] * self._width
            with tf.device(device):
                held = tf.raw_ops.MapUnstage(
                    key=number,
                    indices=places,
                    dtypes=self._dtypes,
                    shared_name=name,
                )
            for i, tensor in zip(self._held, held, strict=True):
                part[i] = tensor
            for i, tensor in zip(self._rest, rest[k * len(self._rest) :], strict=False):
                part[i] = tensor
            row.extend(part)
        return row

    def clear(self) -> None:
        """Frees all rows. The entries in the queue become useless."""
        if self._held:
            for name, device in self._maps.items():
                with tf.init_scope(), tf.device(device):
                    tf.raw_ops.MapClear(dtypes=self._dtypes, shared_name=name)


def _held(spec: Any) -> list[int]:
    """Returns the indices of an element's flat tensors that are kept on the device."""
    places = []
    place = 0
    for leaf in tf.nest.flatten(spec):
        if isinstance(leaf, tf.TensorSpec):
            if leaf.dtype not in _HOST_TYPES:
                places.append(place)
            place += 1
        else:  # A ragged or sparse tensor: some of its parts are used on the host.
            place += len(tf.nest.flatten(leaf, expand_composites=True))
    return places
