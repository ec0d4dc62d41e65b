"""Inputs that are computed inside the step, and the making of all inputs from an `input_fn`."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step.inputs import contract, datasets

# A callable that returns one of these was called once, when the step was traced.
_CONSTANT = (np.ndarray, np.generic, bool, int, float, complex, str, bytes)


def refuse_constants(function: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps a callable input so that its result is checked.

    Args:
      function: a callable input; called only when a step is traced, not in every step.

    Returns:
      The wrapped function. It raises `ConfigError` if `function` returns values that Python has
      computed, such as arrays or numbers, which would be the same in every step.
    """

    def call() -> Any:
        element = function()
        for leaf in tf.nest.flatten(element):
            if isinstance(leaf, _CONSTANT):
                raise errors.ConfigError(
                    "expected tensors from a callable input, which is traced once, got a "
                    f"{type(leaf).__name__}, which would be the same in every step; compute it in "
                    "tf.numpy_function, return a tf.data.Dataset from input_fn, or use tf.constant "
                    "if it should stay the same"
                )
        return element

    return call


class CallableInputs(contract.Inputs):
    """A zero-argument function of TensorFlow operations, which every replica runs in every step."""

    def __init__(self, functions: Sequence[Callable[[], Any]], num_replicas: int):
        """Calls nothing yet.

        Args:
          functions: one for all replicas of this process, or one for each.
          num_replicas: number of replicas of this process.
        """
        super().__init__()
        self._functions = tuple(refuse_constants(function) for function in functions)
        self._num_replicas = num_replicas
        with tf.init_scope(), tf.device("/cpu:0"):
            self._num_cancels = tf.Variable(0, trainable=False, name="num_cancels")
            self._end = tf.Variable(False, trainable=False, name="end")
        self._is_closed = False  # The value of `_end` in Python, read without an operation.

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


def call_input_fn(
    input_fn: contract.InputFn, contexts: Sequence[contract.InputContext], pad_to: int | None
) -> list[Any]:
    """Calls `input_fn` once for every context and checks the results.

    Args:
      input_fn: see `Replicator.make_inputs`.
      contexts: one for each call.
      pad_to: see `Replicator.make_inputs`.

    Returns:
      Datasets, or callables.

    Raises:
      ConfigError: if the results are neither, differ in their elements, or cannot be padded.
    """
    found: list[Any] = [input_fn(context) for context in contexts]
    if all(isinstance(source, tf.data.Dataset) for source in found):
        for source in found[1:]:
            if source.element_spec != found[0].element_spec:
                raise errors.ConfigError(
                    f"expected datasets with equal elements, got {found[0].element_spec} and "
                    f"{source.element_spec}; let input_fn differ only in what it reads"
                )
        return [_without_autotuning(source) for source in found]
    if all(callable(source) for source in found) and pad_to is None:
        return found
    raise errors.ConfigError(
        "expected input_fn to return a tf.data.Dataset"
        + (" or a zero-argument callable" if pad_to is None else ", the only thing to pad")
        + f", got {type(found[0]).__name__}; batch your data with "
        "tf.data.Dataset.from_tensor_slices(...)"
    )


def make(
    input_fn: contract.InputFn,
    contexts: Sequence[contract.InputContext],
    num_replicas: int,
    pad_to: int | None,
    devices: Sequence[str] = (),
) -> contract.Inputs:
    """Makes the inputs of this process's replicas.

    Args:
      input_fn: see `Replicator.make_inputs`.
      contexts: one for this process, or one for each of its replicas.
      num_replicas: number of replicas of this process.
      pad_to: see `Replicator.make_inputs`.
      devices: device of each replica, to which rows are copied ahead of the steps; () for none.

    Raises:
      ConfigError: see `call_input_fn`.
    """
    found = call_input_fn(input_fn, contexts, pad_to)
    if not isinstance(found[0], tf.data.Dataset):
        return CallableInputs(found, num_replicas)
    if pad_to is not None:
        return datasets.PaddedInputs(found, num_replicas, pad_to, devices)
    return datasets.DatasetInputs(found, num_replicas, devices=devices)


def _without_autotuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset without the thread that tunes it, unless its own options ask for one.

    TensorFlow 2.15 frees an iterator only after that thread has ended. The thread sleeps for up to
    a minute at a time and may miss its cancellation, so freeing the iterator, for example by the
    garbage collector, can take as long. Without the thread, `tf.data.AUTOTUNE` means the number of
    cores, at most 16.
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
