"""The contract between a compiled step and its input."""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

# The status of a row: ELEMENT if it exists, otherwise the reason why no step takes it. Of several
# reasons, that with the greatest number counts.
ELEMENT, END, FAILED, UNEVEN, CANCELLED = range(5)


@dataclasses.dataclass(frozen=True)
class InputContext:
    """The argument of an `input_fn`, which determines the part of the data to read.

    Attributes:
      num_replicas: number of replicas of the step, over all processes.
      input_pipeline_id: index of this pipeline, from 0.
      num_input_pipelines: number of pipelines, one for each call of `input_fn`: once per process,
        or once per replica. Each pipeline should read its own part; see `shard`.
    """

    num_replicas: int
    input_pipeline_id: int = 0
    num_input_pipelines: int = 1

    @property
    def num_replicas_in_sync(self) -> int:
        """The same as `num_replicas`, under the name of `tf.distribute.InputContext`."""
        return self.num_replicas

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """Divides a global batch by the number of replicas.

        Args:
          global_batch_size: number of examples over all replicas.

        Returns:
          The number of examples per replica.

        Raises:
          ConfigError: if the replicas cannot share the batch equally.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas:
            raise errors.ConfigError(
                f"expected a global batch size that {self.num_replicas} replicas can share "
                f"equally, got {global_batch_size}; use a multiple of {self.num_replicas}"
            )
        return global_batch_size // self.num_replicas

    def shard(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Selects this pipeline's part: every `num_input_pipelines`-th element of `dataset`."""
        return dataset.shard(self.num_input_pipelines, self.input_pipeline_id)


InputFn = Callable[[InputContext], "tf.data.Dataset | Callable[[], Any]"]


class Inputs(abc.ABC):
    """Elements for the replicas of one or several steps. Created by `Replicator.make_inputs`.

    A row holds one element for every replica of this process. The compiled step takes rows inside
    its graph; the methods marked "Traced" build that part of the graph.

    Attributes:
      specs: specs of a row's tensors.
      argument_specs: specs of the arguments of the compiled step; see `arguments`.
    """

    specs: tuple[tf.TensorSpec, ...] = ()
    argument_specs: tuple[Any, ...] = ()

    def __init__(self) -> None:
        with tf.init_scope(), tf.device("/cpu:0"):
            self._position = tf.Variable(0, dtype=tf.int64, trainable=False, name="position")

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Arguments for the compiled step's next call, which it passes on to `take`."""
        return ()

    @abc.abstractmethod
    def take(self, *arguments: Any) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        """Traced: takes the next row.

        Args:
          *arguments: symbolic values of `argument_specs`.

        Returns:
          The status (int32 scalar), and the tensors that `load` turns into the row, which are
          meaningless unless the status is `ELEMENT`. A status below that stands for `ELEMENT`, too:
          it is minus the size of the batches of each replica, which has to be equal everywhere.
        """

    def load(self, entry: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Traced: returns the row's tensors (of `specs`), on the devices that hold them.

        Args:
          entry: the tensors from `take`. Each entry is loaded at most once.
        """
        return entry

    @abc.abstractmethod
    def split(self, row: Sequence[tf.Tensor]) -> list[Any]:
        """Traced: splits a row into one part for each replica of this process."""

    @abc.abstractmethod
    def element(self, part: Any) -> Any:
        """Traced inside each replica: turns its part of the row into the argument of `step_fn`."""

    def combine_statuses(self, statuses: tf.Tensor) -> tf.Tensor:
        """Traced: chooses the status that all processes of the step follow.

        Args:
          statuses: [processes] int32, what `take` returned in each process.

        Returns:
          The common status, an int32 scalar.
        """
        least, greatest = tf.reduce_min(statuses), tf.reduce_max(statuses)
        status = tf.where(tf.equal(least, greatest), ELEMENT, UNEVEN)
        return tf.where(greatest > ELEMENT, greatest, status)

    def keep_unused_rows(self) -> None:  # noqa: B027 - there may be no rows to lose.
        """Makes the steps that are traced from now on keep rows that they do not use.

        For steps of several processes: when one process cancels a step, the others may already have
        taken their rows, or reached the end of their data. The next step must find these rows;
        otherwise the processes would get out of step.
        """

    def keep_unused(  # noqa: B027 - likewise
        self, status: tf.Tensor, agreed: tf.Tensor, entry: Sequence[tf.Tensor]
    ) -> None:
        """Traced: keeps the result of `take` for the next step if another process cancels this one.

        Args:
          status: int32 scalar, from `take`.
          agreed: int32 scalar, the status that all processes follow.
          entry: the tensors from `take`.
        """

    def advance(self) -> tf.Tensor:
        """Traced: counts a row that the step uses."""
        return self._position.assign_add(1, read_value=False)

    @property
    def position(self) -> int:
        """Number of rows used since the beginning of the data, by all steps on this input."""
        return int(self._position.numpy())

    @abc.abstractmethod
    def go_to(self, position: int) -> None:
        """Starts at a later row, as if those before it had been used.

        The data before it is read again and dropped. So with the same `input_fn` and global batch,
        the data continues where it stopped. This holds even for another number of replicas if the
        batches contain the same examples in the same order; see `InputPart`.

        Args:
          position: number of rows to skip.

        Raises:
          ConfigError: if a step has been taken since the last `restart`.
        """

    @abc.abstractmethod
    def restart(self) -> None:
        """Starts again at the first row, even if data is left. No step may be running.

        The input of an evaluation forgets that it was cancelled.
        """

    @abc.abstractmethod
    def start(self) -> None:
        """Prepares for a step; called before every step.

        Raises:
          Exception: the error that ended the input, if it has ended.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """Makes one step raise `StepCancelled`. Callable from any thread."""

    @abc.abstractmethod
    def ended(self, status: int) -> Exception:
        """Ends the input because of `status`, on which all processes agreed.

        Returns:
          The error to raise in the caller of the step.
        """

    def failure(self, error: Exception) -> Exception:
        """Translates an error of the compiled step into the one to raise."""
        return error

    def num_ready(self) -> int | None:
        """Number of rows that can be taken without waiting; None if steps never wait for rows."""
        return None

    @abc.abstractmethod
    def close(self) -> None:
        """Ends the input permanently: a waiting step, and every later one, raises `EndOfData`.

        If this interrupts a call of several steps, the outputs of its earlier steps are lost. Rows
        on devices are freed with the input.
        """


def cancelled() -> errors.StepCancelled:
    """Returns the error of a step that `cancel` has ended."""
    return errors.StepCancelled("the step was cancelled while it waited for input")


def closed() -> errors.EndOfData:
    """Returns the error of a step whose input was closed."""
    return errors.EndOfData("the input was closed")
