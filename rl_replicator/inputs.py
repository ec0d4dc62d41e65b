"""The input of a replicated step: one element for every replica, every step.

A pump thread moves elements from the dataset into a small queue of tensors, and the compiled step
takes them from there. The queue is what makes an input stoppable: a dataset that waits for data
(a replay table that is empty, say) cannot be interrupted, but a mark can always be put into the
queue for the step to find. The step that finds it fails before it has touched a variable.
"""

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors

_MARK = "mark in the input"
_ELEMENT, _CANCELLED, _END, _FAILED = range(4)


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What an `input_fn` may ask about the place that it feeds."""

    num_replicas: int
    input_pipeline_id: int = 0
    num_input_pipelines: int = 1

    @property
    def num_replicas_in_sync(self) -> int:
        return self.num_replicas

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """The share of one replica.

        Raises:
          ConfigError: the batch does not divide by the number of replicas.
        """
        if global_batch_size < 1 or global_batch_size % self.num_replicas:
            raise errors.ConfigError(
                f"expected a global batch size that {self.num_replicas} replicas can share "
                f"equally, got {global_batch_size}; use a multiple of {self.num_replicas}"
            )
        return global_batch_size // self.num_replicas


InputFn = Callable[[InputContext], "tf.data.Dataset | Callable[[], Any]"]


class Inputs:
    """Elements for the replicas of one or several steps. Made by `Replicator.make_inputs`."""

    def take(self) -> list[Any] | None:
        """Traced by a step: the next elements, one per replica; None if they need no taking."""
        raise NotImplementedError

    def element(self, taken: Any) -> Any:
        """Traced inside each replica: what `step_fn` receives for one of the taken elements."""
        raise NotImplementedError

    def start(self) -> None:
        """Called before every step."""

    def cancel(self) -> None:
        """Leaves a mark: the step that meets it raises `StepCancelled`. Any thread may call."""
        raise NotImplementedError

    def failure(self, error: Exception) -> Exception:
        """The error to raise for one that came out of the compiled step."""
        return error

    def num_ready(self) -> int | None:
        """Elements that wait for the step; None where none has to be waited for."""
        return None

    def close(self) -> None:
        """Ends the input for good: a step that waits raises `EndOfData`, as do all later ones."""


class CallableInputs(Inputs):
    """A zero-argument function of TensorFlow, called anew by every replica in every step."""

    def __init__(self, function: Callable[[], Any]):
        self._function = function
        self._cancelled = threading.Event()
        self._closed = False

    def take(self) -> None:
        return None

    def element(self, taken: Any) -> Any:
        return self._function()

    def start(self) -> None:
        if self._closed:
            raise errors.EndOfData("the input was closed")
        if self._cancelled.is_set():
            self._cancelled.clear()
            raise errors.StepCancelled("the step was cancelled before it began")

    def cancel(self) -> None:
        self._cancelled.set()

    def close(self) -> None:
        self._closed = True


class DatasetInputs(Inputs):
    """The elements of a dataset, dealt out to the replicas in order.

    In step k of N replicas, replica i receives element k * N + i. The elements of up to `capacity`
    steps wait ready, so they are that much older than the newest that the dataset could give. An
    incomplete row at the end of finite data is dropped.
    """

    def __init__(self, dataset: tf.data.Dataset, num_replicas: int, capacity: int = 2):
        self._dataset = dataset
        self._num_replicas = num_replicas
        self._spec = dataset.element_spec
        self._specs = tf.nest.flatten(self._spec, expand_composites=True)
        # One entry of the queue is the status and the elements of all replicas.
        types = [tf.int32, *(s.dtype for s in self._specs * num_replicas)]
        with tf.device("/cpu:0"):
            self._queue = tf.queue.FIFOQueue(capacity, types)
        self._lock = threading.Lock()
        self._pump: threading.Thread | None = None
        self._error: Exception | None = None

    def take(self) -> list[Any]:
        with tf.device("/cpu:0"):
            status, *flat = self._queue.dequeue()
            # The raw operation: tf.debugging.Assert wraps itself in a slow tf.cond.
            check = tf.raw_ops.Assert(
                condition=tf.equal(status, _ELEMENT), data=[tf.constant(_MARK), status]
            )
            with tf.control_dependencies([check]):
                flat = [tf.identity(x) for x in flat]
        width = len(self._specs)
        return [self._pack(flat[i * width : (i + 1) * width]) for i in range(self._num_replicas)]

    def _pack(self, flat: Sequence[tf.Tensor]) -> Any:
        for tensor, spec in zip(flat, self._specs, strict=True):
            if isinstance(spec, tf.TensorSpec):
                tensor.set_shape(spec.shape)
        return tf.nest.pack_sequence_as(self._spec, flat, expand_composites=True)

    def element(self, taken: Any) -> Any:
        return taken

    def start(self) -> None:
        if self._pump is not None:
            return
        with self._lock:
            if self._pump is None:
                pump = threading.Thread(target=self._run, name="input-pump", daemon=True)
                pump.start()
                self._pump = pump

    def _run(self) -> None:
        try:
            iterator = iter(self._dataset)

            @tf.function(autograph=False)
            def pump():
                def body(count):
                    row = [iterator.get_next() for _ in range(self._num_replicas)]
                    flat = tf.nest.flatten(row, expand_composites=True)
                    with tf.control_dependencies([self._queue.enqueue([_ELEMENT, *flat])]):
                        return count + 1

                return tf.while_loop(
                    lambda _: True, body, [tf.constant(0, tf.int64)], parallel_iterations=1
                )

            pump()
        except tf.errors.OutOfRangeError:
            self._mark(_END)
        except Exception as error:  # Whatever it is, the step's caller must see it.
            if not self._queue.is_closed():
                self._error = error
                self._mark(_FAILED)

    def _mark(self, status: int) -> None:
        empty = [tf.zeros([0], s.dtype) for s in self._specs * self._num_replicas]
        with contextlib.suppress(tf.errors.CancelledError):  # Closed in the meantime.
            self._queue.enqueue([status, *empty])

    def cancel(self) -> None:
        # In a thread of its own, because a full queue takes the mark only as the steps go on.
        threading.Thread(target=self._mark, args=(_CANCELLED,), daemon=True).start()

    def failure(self, error: Exception) -> Exception:
        text = str(error)
        if isinstance(error, tf.errors.InvalidArgumentError) and f"[{_MARK}] [" in text:
            status = text.split(f"[{_MARK}] [", 1)[1][:1]
            if status == str(_CANCELLED):
                return errors.StepCancelled("the step was cancelled while it waited for input")
            if status == str(_END):
                self._again(_END)
                return errors.EndOfData("the dataset has ended; repeat() it to train on")
            if status == str(_FAILED) and self._error is not None:
                self._again(_FAILED)
                return self._error
        if isinstance(error, tf.errors.OutOfRangeError) and self._queue.is_closed():
            return errors.EndOfData("the input was closed")
        return error

    def _again(self, status: int) -> None:
        """Puts a lasting condition back, so that the next step meets it too and does not hang."""
        threading.Thread(target=self._mark, args=(status,), daemon=True).start()

    def num_ready(self) -> int:
        return int(self._queue.size())

    def close(self) -> None:
        self._queue.close(cancel_pending_enqueues=True)


def make(input_fn: InputFn, context: InputContext) -> Inputs:
    """Calls `input_fn` and wraps what it returns.

    Raises:
      ConfigError: the result is neither a dataset nor a callable.
    """
    source = input_fn(context)
    if isinstance(source, tf.data.Dataset):
        return DatasetInputs(source, context.num_replicas)
    if callable(source):
        return CallableInputs(source)
    raise errors.ConfigError(
        f"expected input_fn to return a tf.data.Dataset or a zero-argument callable, got "
        f"{type(source).__name__}; batch your data with tf.data.Dataset.from_tensor_slices(...)"
    )
