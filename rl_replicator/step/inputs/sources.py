"""Makes inputs from the result of the user's `input_fn`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.step.inputs import callables, contract, datasets, padding


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
        return callables.CallableInputs(found, num_replicas)
    if pad_to is not None:
        return padding.PaddedInputs(found, num_replicas, pad_to, devices)
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
