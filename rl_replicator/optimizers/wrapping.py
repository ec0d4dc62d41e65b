"""Wraps optimizers so that all replicas apply the same, reduced gradients."""

import copy
import functools
import inspect
import logging
import os
import weakref
from collections.abc import Sequence
from typing import Any

import sonnet as snt
import tensorflow as tf
from sonnet.src.optimizers import optimizer_utils as snt_utils

from rl_replicator import collectives, errors
from rl_replicator.collectives import call_log, sums
from rl_replicator.graphs import assignments, leaves
from rl_replicator.layers import statistics
from rl_replicator.optimizers import adam, gradients, momentum, slots
from rl_replicator.optimizers.gradients import LossScaleGuard, Options

# The optimizers of these packages have no Python control flow that depends on tensors, so the step
# is traced faster without AutoGraph. A user's own optimizer is converted like the rest of the step.
_WITHOUT_AUTOGRAPH = frozenset({"rl_replicator", "sonnet", "keras", "tensorflow"})
# Arguments that make a Keras optimizer clip gradients itself.
_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
# Where the optimizers that `wrap_optimizer` accepts change variables.
_SOURCES = (
    *(
        os.path.dirname(inspect.getfile(one))
        for one in (snt.optimizers.SGD, tf.keras.optimizers.SGD)
    ),
    *(inspect.getfile(one) for one in (adam, momentum)),
)
# The parameters for which a Sonnet optimizer has slots, in order.
_PARAMETERS: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()


class Wrapped:
    """The base of wrapped optimizers: reduces gradients, and then applies the inner optimizer.

    Attributes that it does not have are those of the inner optimizer.

    Attributes:
      optimizer: the inner optimizer.
      options: how gradients are processed.
      guard: counts skipped steps; None if none are skipped.
    """

    optimizer: Any
    options: Options
    guard: LossScaleGuard | None

    def _hold(self, optimizer: Any, options: Options) -> None:
        """Stores what the wrapper consists of. `optimizer` is last: see `__setattr__`."""
        self.options = options
        self.guard = LossScaleGuard(options.is_dynamic) if options.skips else None
        self._scales_losses = False  # Whether `scale_loss` was ever called.
        self._num_reported = 0
        self.optimizer = optimizer

    def __getattr__(self, name: str) -> Any:
        """Returns an attribute of the inner optimizer; those of TensorFlow's tracking are own."""
        if "optimizer" not in vars(self) or name.startswith(("__", "_self_")):
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute that the wrapper has, or else one of the inner optimizer."""
        own = vars(self)
        if "optimizer" in own and name not in own and not name.startswith("_self_"):
            setattr(self.optimizer, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def num_skipped(self) -> tf.Tensor:
        """Steps skipped because a gradient was not finite, an int64 scalar; inside steps, too."""
        return (
            tf.constant(0, tf.int64) if self.guard is None else tf.identity(self.guard.num_skipped)
        )

    @property
    def loss_scale(self) -> tf.Tensor:
        """Factor of `scale_loss`, a float32 scalar that changes only at the end of a step."""
        if self.guard is not None and self.guard.scale is not None:
            return tf.identity(self.guard.scale)
        return tf.constant(float(self.options.loss_scale or 1.0), tf.float32)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Multiplies the loss by the loss scale; `apply` divides the gradients by it.

        All losses of a step have the same scale: a change by `apply` takes effect in the next step,
        or at once if another asynchronous worker makes it.

        Args:
          loss: scalar in any dtype but float16, whose largest number is smaller than usual scales.

        Returns:
          A scalar in the dtype of `loss`; `loss` itself without a `loss_scale`.

        Raises:
          ConfigError: if `loss` is float16.
        """
        if self.options.loss_scale is None:
            return loss
        if loss.dtype == tf.float16:
            raise errors.ConfigError(
                "expected a loss in float32 to scale, got float16, in which a scaled loss "
                "overflows; compute the loss from tf.cast(outputs, tf.float32)"
            )
        self._scales_losses = True
        return loss * tf.cast(self.loss_scale, loss.dtype)

    def report_skipped(self) -> int:
        """Warns of steps that were skipped since the last report. Call it outside of steps.

        `num_skipped` is part of checkpoints; call `note_reported` after a restore, so that earlier
        steps are not reported again.

        Returns:
          The number of those steps.
        """
        before = self._num_reported
        count = self.note_reported()
        new = count - before
        if new > 0:
            logging.getLogger(__name__).warning(
                "skipped %d steps whose gradients were not finite (%d in all)", new, count
            )
        return new

    def note_reported(self) -> int:
        """Marks the steps that were skipped so far as reported. Call it outside of steps.

        Returns:
          The number of those steps.
        """
        self._num_reported = int(self.num_skipped)
        return self._num_reported

    @tf.autograph.experimental.do_not_convert
    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        """Reduces the gradients over the replicas, then applies them on all replicas or on none.

        Args:
          updates: gradients of this replica: tensors, `tf.IndexedSlices` or None.
          parameters: one variable per gradient.

        Raises:
          ConfigError: if all gradients are None, if `loss_scale` is set and `scale_loss` was never
            called, or if a `tf.function` that the step calls would skip updates.
        """
        enclosing = call_log.enclosing()
        if self.options.skips and call_log.is_in_function():
            # Another step that calls the function has its own statistics and its own end.
            raise errors.ConfigError(
                "expected optimizer.apply with skip_nonfinite or a dynamic loss scale outside of "
                "nested tf.functions, which keep the trace of their first step, found it in one; "
                "call it in step_fn itself"
            )
        if enclosing is not None:
            enclosing.reductions.add(self.options.reduction)
        build(self, parameters)  # Slots must not be created inside tf.cond, or in one replica.
        updates = self._processed(updates, parameters)
        if self.guard is None:
            self._apply_here(updates, parameters)
            return
        # Checked last, because clipping by an infinite norm and narrowing to float16 can make
        # values non-finite, too.
        finite = gradients.all_finite(updates)
        tf.cond(finite, lambda: self._apply_here(updates, parameters), lambda: None)
        self.guard.update(finite)
        if enclosing is None:
            self.guard.adapt()
        else:
            enclosing.at_end[self.guard.adapt] = None
        statistics.restore_unless(finite)

    def _processed(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> list[Any]:
        """Returns the reduced, merged, unscaled and clipped gradients."""
        options = self.options
        updates = gradients.widen(updates)
        if options.reduction != "none":
            updates = collectives.all_reduce(updates, options.reduction)
        if all(update is None for update in updates):
            names = ", ".join(parameter.name for parameter in parameters)
            raise errors.ConfigError(
                f"expected a gradient for at least one parameter, got None for all ({names}); take "
                "the gradient of a loss that depends on them, computed inside the tape"
            )
        # Keras clips rows before it sums them: the clipped gradient would depend on how often a row
        # occurs. On GPUs, optimizers add rows in a different order on each replica.
        clips = any(getattr(self.optimizer, name, None) for name in _CLIPPING)
        updates = [
            gradients.merge_rows(update) if clips or gradients.is_on_gpu(update) else update
            for update in updates
        ]
        if options.loss_scale is not None:
            if call_log.enclosing() is not None and not self._scales_losses:
                raise errors.ConfigError(
                    "expected the gradient of optimizer.scale_loss(loss), found no call of it; "
                    "scale the loss before its gradient is taken"
                )
            updates = gradients.unscale(updates, self.loss_scale)
        if options.max_global_norm is not None:
            updates = gradients.clip(updates, options.max_global_norm)
        return gradients.narrow(updates, parameters)

    def _apply_here(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        """Applies reduced gradients to this replica's copies of the parameters."""
        # TensorFlow lets a replica change rows of its own copy only.
        targets = [
            own_copy(parameter) if isinstance(update, tf.IndexedSlices) else parameter
            for update, parameter in zip(updates, parameters, strict=True)
        ]
        self._apply_inner(updates, targets)

    def _apply_inner(self, updates: Sequence[Any], targets: Sequence[Any]) -> None:
        raise NotImplementedError


class _Sonnet(Wrapped, snt.Optimizer):
    """For optimizers whose `apply` reads and writes the replica's own variables."""

    def __init__(self, optimizer: Any, options: Options):
        snt.Optimizer.__init__(self, name=optimizer.name)
        self._hold(optimizer, options)

    def _apply_inner(self, updates: Sequence[Any], targets: Sequence[Any]) -> None:
        inner = self.optimizer
        if any(isinstance(update, tf.IndexedSlices) for update in updates):
            inner = _seen_by_replica(inner)
        is_known = type(inner).__module__.partition(".")[0] in _WITHOUT_AUTOGRAPH
        (inner.apply if is_known else leaves.converted(inner.apply))(updates, targets)
        for update, target in zip(updates, targets, strict=True):
            if update is not None and target.constraint is not None:  # As Keras' optimizers do.
                target.assign(target.constraint(target))


class _Keras(Wrapped, tf.keras.optimizers.Optimizer):
    """For Keras optimizers: one `apply` for all, and `apply_gradients` as Keras has it."""

    def __init__(self, optimizer: Any, options: Options):
        # Not Keras' own constructor, which would create a second counter of steps.
        self._hold(optimizer, options)

    def build(self, var_list: Sequence[tf.Variable]) -> None:
        """Creates the slots."""
        build(self, var_list)

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
    ) -> tf.Tensor:
        """Applies pairs of gradient and variable. Keras itself never reduces the gradients here.

        Args:
          grads_and_vars: the pairs.
          name: see Keras; ignored, because the slots exist already.
          skip_gradients_aggregation: whether the step itself has reduced the gradients; True
            requires `reduction="none"` in `wrap_optimizer`.

        Returns:
          The optimizer's number of steps so far, an int64 scalar.

        Raises:
          ConfigError: if the step has reduced the gradients and `reduction` is not "none".
        """
        del name
        if skip_gradients_aggregation and self.options.reduction != "none":
            raise errors.ConfigError(
                "expected gradients for the optimizer to reduce, got reduced ones "
                '(skip_gradients_aggregation); use wrap_optimizer(..., reduction="none")'
            )
        pairs = list(grads_and_vars)
        self.apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return tf.identity(self.iterations)

    def _apply_inner(self, updates: Sequence[Any], targets: Sequence[Any]) -> None:
        # Keras itself would leave the replica, to update all copies from outside.
        local, here = _seen_by_replica(self.optimizer), _ReplicaLocal()
        vars(local).update(
            jit_compile=False,  # Otherwise it compiles every update separately.
            _distribution_strategy=here,
            _internal_apply_gradients=functools.partial(
                local._distributed_apply_gradients_fn, here
            ),
            # The method of Keras' base class, which uses no strategy.
            _apply_weight_decay=super(tf.keras.optimizers.Optimizer, local)._apply_weight_decay,
        )
        pairs = zip(updates, targets, strict=True)
        try:
            local.apply_gradients(list(pairs), skip_gradients_aggregation=True)
        except KeyError as error:  # Keras finds slots by variable.
            raise errors.ConfigError(
                "expected the variables for which the optimizer has slots, which are those of its "
                f"first step, got others (Keras: {str(error.args[0]).partition('. ')[0]}); call "
                "replicator.build_optimizer first with the parameters of all networks (or the "
                "optimizer's build, in a model_fn), or use one optimizer for each"
            ) from None


class _ReplicaLocal:
    """Stands in for a strategy: applies updates in the calling replica, to its own copies."""

    @property
    def extended(self) -> "_ReplicaLocal":
        return self

    def update(
        self, variable: Any, function: Any, args: Any = (), kwargs: Any = None, group: bool = True
    ) -> Any:
        """Calls `function(variable, *args, **kwargs)`; see `tf.distribute.StrategyExtended`."""
        del group
        return function(variable, *args, **(kwargs or {}))


def own_copy(variable: Any) -> Any:
    """Returns the copy of the replica that is being traced; the variable itself elsewhere."""
    copies, context = getattr(variable, "values", None), tf.distribute.get_replica_context()
    if not copies or context is None or context.strategy is not variable.distribute_strategy:
        return variable
    index = sums.static_replica_id()
    return variable if index is None else copies[index % len(copies)]


def _seen_by_replica(optimizer: Any) -> Any:
    """Returns a shallow copy of an optimizer whose slots are the replica's own copies."""

    def own(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [own(one) for one in value]
        return own_copy(value) if isinstance(value, tf.Variable) else value

    view = copy.copy(optimizer)
    # Not `setattr`, by which TensorFlow would save the attribute with the optimizer.
    vars(view).update({name: own(value) for name, value in vars(optimizer).items()})
    return view


# What `wrap` cannot wrap, and what to do instead. Nadam counts steps in a Python integer, which
# changes only while a step is traced.
_REFUSED: tuple[tuple[type, str], ...] = (
    (Wrapped, "call wrap_optimizer once"),
    (
        tf.keras.mixed_precision.LossScaleOptimizer,
        'wrap its inner_optimizer with loss_scale="dynamic"',
    ),
    (tf.keras.optimizers.Nadam, "use Adam, whose state is in variables"),
)


def wrap(optimizer: Any, options: Options) -> Wrapped:
    """See `Replicator.wrap_optimizer`. Must be called in the replicator's scope."""
    advice = "use one of snt.optimizers, rr.optimizers or tf.keras.optimizers"
    for kind, special in _REFUSED:
        if isinstance(optimizer, kind):
            advice = special
            break
    else:
        if isinstance(optimizer, snt.Optimizer):
            return _Sonnet(optimizer, options)
        if isinstance(optimizer, tf.keras.optimizers.Optimizer):
            return _Keras(optimizer, options)
    raise errors.ConfigError(
        f"expected a Sonnet or Keras optimizer, got {type(optimizer).__name__} of "
        f"{type(optimizer).__module__}; {advice}"
    )


def build(wrapped: Any, parameters: Sequence[tf.Variable]) -> None:
    """Creates the optimizer's slots; see `Replicator.build_optimizer`."""
    if not parameters:
        raise errors.ConfigError(
            "expected the parameters that the optimizer updates, got none; build the model on a "
            "first input before, or leave the optimizer out if nothing in it is trainable"
        )
    optimizer = wrapped.optimizer
    watched = slots.Parameters(parameters)
    try:
        if isinstance(optimizer, tf.keras.optimizers.Optimizer):
            with tf.init_scope():
                optimizer.build(watched)
        else:
            initialize = getattr(optimizer, "_initialize", None)
            if initialize is not None:  # Optimizers without state, such as SGD, have no slots.
                _check_same(optimizer, parameters)
                initialize(watched)
    finally:
        watched.stop()


def _check_same(optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
    """Raises an error for parameters other than those for which a Sonnet optimizer has slots.

    Such an optimizer creates slots once and finds them by position, so it would use the slots of
    other parameters.
    """
    given = tuple(parameter.ref() for parameter in parameters)
    if _PARAMETERS.setdefault(optimizer, given) != given:
        first = ", ".join(known.deref().name for known in _PARAMETERS[optimizer])
        names = ", ".join(parameter.name for parameter in parameters)
        names = "others of the same names" if names == first else names
        raise errors.ConfigError(
            f"expected the optimizer's first parameters in their order ({first}), got {names}; "
            "use one optimizer for each list of parameters, and None as the gradient of those "
            "that a step does not train"
        )


def support(strategy_class: type) -> None:
    """Lets Sonnet's optimizers work under strategies of this class; called by its replicator.

    Sonnet refuses all strategies but its own, because its updates are local to a replica. Under a
    replicator, gradients are reduced before the updates and variables are local, whatever the
    strategy.
    """
    known = snt_utils._SUPPORTED_STRATEGIES
    if not issubclass(strategy_class, known):
        snt_utils._SUPPORTED_STRATEGIES = (*known, strategy_class)


def check_wrapped(step: tf.types.experimental.ConcreteFunction) -> None:
    """Refuses a traced step that applies an optimizer of a library without `wrap_optimizer`.

    Without averaged gradients, replicas diverge (Sonnet) or sum the gradients (Keras), without any
    error. Such an optimizer is also refused on a single replica, where the results would be
    correct: a step function must not depend on where it runs.

    Raises:
      ConfigError: if an operation of such an optimizer changes a variable.
    """
    for _, handle in step.graph.captures:
        for operation in assignments.writers(handle) if handle.dtype == tf.resource else ():
            files = [frame.filename for frame in operation.traceback or ()]
            if __file__ not in files and any(file.startswith(_SOURCES) for file in files):
                raise errors.ConfigError(
                    "expected an optimizer that averages gradients over the replicas, found an "
                    f"unwrapped one in the step ({operation.name}); use replicator.wrap_optimizer "
                    "with one of snt.optimizers, rr.optimizers or tf.keras.optimizers"
                )
