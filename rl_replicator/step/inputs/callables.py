"""Inputs that are computed inside the step."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator.step.inputs import contract


class CallableInputs(contract.Inputs):
    """A zero-argument function of TensorFlow, called by every replica in every step."""

    def __init__(self, functions: Sequence[Callable[[], Any]], num_replicas: int):
        """Calls nothing yet.

        Args:
          functions: one for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
        """
        super().__init__()
        self._functions = tuple(functions)
        self._num_replicas = num_replicas
        with tf.init_scope(), tf.device("/cpu:0"):
            self._status = tf.Variable(
                contract.ELEMENT, dtype=tf.int32, trainable=False, name="status"
            )
        self._closed = False

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        del arguments
        return self._status.read_value(), ()

    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        del row
        return [self._functions[i % len(self._functions)] for i in range(self._num_replicas)]

    def element(self, part: Any) -> Any:
        return part()

    def go_to(self, position: int) -> None:
        self._position.assign(position)

    def restart(self) -> None:
        self._position.assign(0)

    def start(self) -> None:
        if self._closed:
            raise contract.closed()

    def cancel(self) -> None:
        if not self._closed:
            self._status.assign(contract.CANCELLED)

    def ended(self, status: int) -> Exception:
        del status
        if self._closed:
            return contract.closed()
        self._status.assign(contract.ELEMENT)
        return contract.cancelled()

    def close(self) -> None:
        self._closed = True
        self._status.assign(contract.END)
