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
            self._num_cancels = tf.Variable(0, trainable=False, name="num_cancels")
            self._end = tf.Variable(False, trainable=False, name="end")
        self._is_closed = False  # The same, without an operation to read it.

    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        del arguments
        is_cancelled = self._num_cancels.read_value() > 0
        status = tf.where(is_cancelled, contract.CANCELLED, contract.ELEMENT)
        return tf.where(self._end.read_value(), contract.END, status), ()

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
        if self._is_closed:
            raise contract.closed()

    def cancel(self) -> None:
        with tf.init_scope():  # A signal handler may call it while a step is traced.
            self._num_cancels.assign_add(1)

    def ended(self, status: int) -> Exception:
        if status == contract.END:
            return contract.closed()
        if self._num_cancels.numpy() > 0:  # Another process may have cancelled the step.
            self._num_cancels.assign_sub(1)
        return contract.cancelled()

    def close(self) -> None:
        self._is_closed = True
        with tf.init_scope():
            self._end.assign(True)
