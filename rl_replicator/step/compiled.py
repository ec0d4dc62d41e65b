"""The compiled step: `step_fn` on every replica, once or several times in one call."""

import abc
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TYPE_CHECKING, Any

import sonnet as snt
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api as autograph

from rl_replicator import errors
from rl_replicator.collectives import call_log
from rl_replicator.layers import batch_norm, statistics
from rl_replicator.step import inputs as inputs_lib

if TYPE_CHECKING:
    from rl_replicator.replicator import Replicator


class ReplicatedStep(abc.ABC):
    """Call it to take a step. Made by `Replicator.replicate`, which compiles it at once."""

    def __init__(self, replicator: "Replicator", steps_per_call: int | None):
        if steps_per_call is not None and steps_per_call < 1:
            raise errors.ConfigError(
                f"expected steps_per_call of at least 1, got {steps_per_call}; "
                "use None for one step whose outputs are not stacked"
            )
        self._replicator = replicator
        self.steps_per_call = steps_per_call

    @abc.abstractmethod
    def __call__(self) -> Any:
        """Takes the step (or `steps_per_call` of them).

        Returns:
          What `step_fn` returned, with tensors for leaves: plain ones on a single replica,
          `PerReplica` ones on several. With `steps_per_call=K` every tensor has a leading axis
          [K], in the order of the steps.

        Raises:
          StepCancelled: `cancel` was called. The variables hold the last whole step before.
          EndOfData: the input is used up. The same holds for the variables.
        """

    @abc.abstractmethod
    def cancel(self) -> None:
        """Ends a call that waits for input, or the next one. Callable from any thread.

        One `cancel` makes one call raise `StepCancelled`: the one that waits, or the first to
        reach the mark behind the elements that are ready. Later calls work again. Steps that
        share their inputs share the mark too.
        """

    def begin(self) -> "futures.Future[Any]":
        """Takes the step in the background, so that Python can work while the devices do.

        Calls begin in the order in which they were made, over all steps of the replicator, one
        at a time. At most two wait: a third call of `begin` blocks until one has ended.

        Returns:
          A future of what calling the step returns, or raises.
        """
        return self._replicator.background.submit(self)


class CompiledStep(ReplicatedStep):
    """A step in one graph for all replicas of this process."""

    def __init__(
        self,
        replicator: "Replicator",
        step_fn: Callable[[Any], Any],
        inputs: inputs_lib.Inputs,
        steps_per_call: int | None,
    ):
        super().__init__(replicator, steps_per_call)
        self._inputs = inputs
        self._step_fn = step_fn  # Keeps alive the variables that the compiled function uses.
        self._converted = _with_autograph(step_fn)
        self._template: Any = None
        self._variables: list[tf.Variable] = []
        self._compiled = self._compile()

    def __call__(self) -> Any:
        self._inputs.start()
        try:
            status, *flat = self._compiled()
            found = int(status)
        except tf.errors.OpError as error:
            failure = self._replicator.failure(self._inputs.failure(error))
            if failure is error:
                raise
            raise failure from None
        if found != inputs_lib.ELEMENT:
            raise self._inputs.ended(found)
        return self._replicator.join(self._unflatten(flat))

    def cancel(self) -> None:
        self._inputs.cancel()

    def _compile(self) -> Callable[[], list[tf.Tensor]]:
        """A function without arguments that returns the status and all outputs."""
        one_step = tf.function(self._one_step, autograph=False).get_concrete_function(
            *self._inputs.specs
        )
        self._variables = self._replicator.registry.check(one_step)
        count = self.steps_per_call

        @tf.function(autograph=False)
        def call():
            return self._once(one_step) if count is None else self._loop(one_step, count)

        return call.get_concrete_function()

    def _one_step(self, *flat: tf.Tensor) -> list[tf.Tensor]:
        """Returns the tensors of all replicas in one list: first all of replica 0, and so on."""
        dealt = self._inputs.deal(flat)

        def replica(index: int) -> Any:
            element = self._inputs.element(dealt[index])
            with statistics.snapshot(self._replicator.registry.created()):
                results = tf.nest.map_structure(as_tensor, self._converted(element))
                batch_norm.average_declared(self._replicator.registry.created())
            return results

        with call_log.tracing() as calls, self._replicator.scope():
            try:
                # Layers and optimizer slots that appear at the first use: created at once, because
                # what several replicas create inside a graph cannot be initialised outside of it.
                run = snt.distribute.create_variables_eagerly(self._replicator.run)
                results = run(replica)
            except Exception:
                calls.check(len(dealt))  # Says more than what TensorFlow makes of it.
                raise
        calls.check(len(dealt))
        self._replicator.check_calls(calls)
        self._template = results[0]
        return [x for result in results for x in tf.nest.flatten(result) if x is not None]

    def _once(self, one_step: tf.types.experimental.ConcreteFunction) -> list[tf.Tensor]:
        status, flat = self._take()
        outputs = tf.cond(
            tf.equal(status, inputs_lib.ELEMENT),
            lambda: self._step(one_step, flat),
            lambda: blanks(one_step, []),
        )
        return [status, *(outputs or [])]

    def _loop(
        self, one_step: tf.types.experimental.ConcreteFunction, count: int
    ) -> list[tf.Tensor]:
        """Steps until one has no input, at most `count`; stacks each output to [count, ...]."""
        arrays = [
            tf.TensorArray(x.dtype, size=count, element_shape=x.shape) for x in one_step.outputs
        ]

        def body(i, _, arrays):
            status, flat = self._take()

            def step():
                outputs = self._step(one_step, flat)
                return [array.write(i, x) for array, x in zip(arrays, outputs, strict=True)]

            arrays = tf.cond(tf.equal(status, inputs_lib.ELEMENT), step, lambda: arrays)
            return i + 1, status, arrays or []

        def goes_on(i, status, _):
            return tf.logical_and(i < count, tf.equal(status, inputs_lib.ELEMENT))

        start = [tf.constant(0), tf.constant(inputs_lib.ELEMENT), arrays]
        _, status, arrays = tf.while_loop(goes_on, body, start, parallel_iterations=1)
        outputs = tf.cond(
            tf.equal(status, inputs_lib.ELEMENT),
            lambda: [array.stack() for array in arrays],
            lambda: blanks(one_step, [count]),
        )
        return [status, *(outputs or [])]

    def _take(self) -> tuple[tf.Tensor, Sequence[tf.Tensor]]:
        status, flat = self._inputs.take()
        return self._replicator.agree(status, self._inputs.agreed), flat

    def _step(
        self, one_step: tf.types.experimental.ConcreteFunction, flat: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        self._inputs.advance()
        return one_step(*flat) or []

    def _unflatten(self, flat: list[tf.Tensor]) -> list[Any]:
        rest = iter(flat)
        leaves = tf.nest.flatten(self._template)
        return [
            tf.nest.pack_sequence_as(
                self._template, [None if leaf is None else next(rest) for leaf in leaves]
            )
            for _ in range(self._replicator.num_local_replicas)
        ]


def blanks(one_step: tf.types.experimental.ConcreteFunction, leading: list[int]) -> list[tf.Tensor]:
    """What stands in for outputs that are not there; nobody looks at them."""
    return [
        tf.zeros(leading + [d or 0 for d in (x.shape if x.shape.rank else [])], x.dtype)
        for x in one_step.outputs
    ]


def as_tensor(value: Any) -> tf.Tensor | None:
    return None if value is None else tf.convert_to_tensor(value)


def _with_autograph(step_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Lets the user's code use `if` and `for` on tensors, as in any `tf.function`."""
    context = ag_ctx.ControlStatusCtx(
        ag_ctx.Status.ENABLED, converter.ConversionOptions(recursive=True)
    )
    return autograph.tf_convert(step_fn, context, user_requested=True)
