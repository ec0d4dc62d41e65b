"""The compiled step: `step_fn` on every replica, once or several times in one call."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sonnet as snt
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api as autograph

from rl_replicator import errors
from rl_replicator import inputs as inputs_lib

if TYPE_CHECKING:
    from rl_replicator.replicator import Replicator


class ReplicatedStep:
    """Call it to take a step. Made by `Replicator.replicate`, which compiles it at once."""

    def __init__(
        self,
        replicator: "Replicator",
        step_fn: Callable[[Any], Any],
        inputs: inputs_lib.Inputs,
        steps_per_call: int | None,
    ):
        if steps_per_call is not None and steps_per_call < 1:
            raise errors.ConfigError(
                f"expected steps_per_call of at least 1, got {steps_per_call}; "
                "use None for one step whose outputs are not stacked"
            )
        self._replicator = replicator
        self._inputs = inputs
        self._step_fn = step_fn  # Keeps alive the variables that the compiled function uses.
        self._converted = _with_autograph(step_fn)
        self._template: Any = None
        self.steps_per_call = steps_per_call
        self._compiled = self._compile()

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
        self._inputs.start()
        try:
            flat = self._compiled()
        except tf.errors.OpError as error:
            failure = self._inputs.failure(error)
            if failure is error:
                raise
            raise failure from None
        return self._replicator.join(self._unflatten(flat))

    def cancel(self) -> None:
        """Ends a call that waits for input, or the next one. Callable from any thread.

        One `cancel` makes one call raise `StepCancelled`: the one that waits, or the first to
        reach the mark behind the elements that are ready. Later calls work again. Steps that
        share their inputs share the mark too.
        """
        self._inputs.cancel()

    def _compile(self) -> Callable[[], list[tf.Tensor]]:
        one_step = tf.function(self._one_step, autograph=False).get_concrete_function()
        self._replicator.registry.check(one_step)
        count = self.steps_per_call
        if count is None:
            return one_step

        def many_steps():
            return _loop(one_step, count)

        return tf.function(many_steps, autograph=False).get_concrete_function()

    def _one_step(self) -> list[tf.Tensor]:
        """Returns the tensors of all replicas in one list: first all of replica 0, and so on."""
        num_replicas = self._replicator.num_replicas
        taken = self._inputs.take()
        results: list[Any] = [None] * num_replicas

        def replica(index: int) -> None:
            element = self._inputs.element(taken[index] if taken else None)
            results[index] = tf.nest.map_structure(_as_tensor, self._converted(element))

        created = self._replicator.registry.num_created
        with self._replicator.scope():
            # Layers and optimizer slots that appear at the first use: created at once, because
            # what several replicas create inside a graph cannot be initialised outside of it.
            snt.distribute.create_variables_eagerly(self._replicator.run)(replica)
        # A trace that creates variables is not the one that runs; and the initial values, which
        # TensorFlow takes from it, must not depend on the input.
        if taken is not None and self._replicator.registry.num_created == created:
            _hold_back_writes(tf.nest.flatten(taken, expand_composites=True)[0].op)
        self._template = results[0]
        return [x for result in results for x in tf.nest.flatten(result) if x is not None]

    def _unflatten(self, flat: list[tf.Tensor]) -> list[Any]:
        rest = iter(flat)
        leaves = tf.nest.flatten(self._template)
        return [
            tf.nest.pack_sequence_as(
                self._template, [None if leaf is None else next(rest) for leaf in leaves]
            )
            for _ in range(self._replicator.num_replicas)
        ]


def _as_tensor(value: Any) -> tf.Tensor | None:
    return None if value is None else tf.convert_to_tensor(value)


def _hold_back_writes(gate: tf.Operation) -> None:
    """Lets no variable change before `gate` has run, which waits for the input of all replicas.

    So a step that is cancelled, or out of data, has happened not at all: even what does not depend
    on the data, such as a step counter, stays.
    """
    operations = gate.graph.get_operations()
    after = operations[operations.index(gate) + 1 :]
    for operation in after:
        writes = operation.type != "ReadVariableOp" and any(
            x.dtype == tf.resource for x in operation.inputs
        )
        if writes:
            operation._add_control_input(gate)


def _loop(one_step: tf.types.experimental.ConcreteFunction, count: int) -> list[tf.Tensor]:
    """Calls `one_step` `count` times; stacks each of its outputs to [count, ...]."""
    arrays = [tf.TensorArray(x.dtype, size=count, element_shape=x.shape) for x in one_step.outputs]

    def body(i, arrays):
        outputs = one_step() or []
        return i + 1, [array.write(i, x) for array, x in zip(arrays, outputs, strict=True)]

    _, arrays = tf.while_loop(lambda i, _: i < count, body, [tf.constant(0), arrays])
    return [array.stack() for array in arrays]


def _with_autograph(step_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Lets the user's code use `if` and `for` on tensors, as in any `tf.function`."""
    context = ag_ctx.ControlStatusCtx(
        ag_ctx.Status.ENABLED, converter.ConversionOptions(recursive=True)
    )
    return autograph.tf_convert(step_fn, context, user_requested=True)
