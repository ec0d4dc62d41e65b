"""Wraps optimizers so that all replicas apply the same, reduced gradients."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import sonnet as snt
import tensorflow as tf
from sonnet.src.optimizers import optimizer_utils as snt_utils

from rl_replicator import collectives, errors
from rl_replicator.collectives import call_log, sums
from rl_replicator.layers import statistics
from rl_replicator.optimizers import gradients, slots
from rl_replicator.optimizers import updates as updates_lib
from rl_replicator.optimizers.gradients import LossScaleGuard, Options

# The optimizers of these packages have no Python control flow that depends on tensors, so the step
# is traced faster without AutoGraph. A user's own optimizer is converted like the rest of the step.
_WITHOUT_AUTOGRAPH = frozenset({"rl_replicator", "sonnet", "keras", "tensorflow"})
# Arguments that make a Keras optimizer clip gradients itself.
_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
# The parameters for which a Sonnet optimizer has slots, in order.
_PARAMETERS: weakref.WeakKeyDictionary[Any, tuple[Any, ...]] = weakref.WeakKeyDictionary()
# The loss scale of an optimizer as read by each replica of a step. Weak, because it refers to the
# step's graph. Not an attribute, in which `tf.Module` would look for variables.
_SCALES: "weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[call_log.CallLog, Any]]" = (
    weakref.WeakKeyDictionary()
)


class Wrapped:
    """The base of all wrapped optimizers, a mixin that precedes the optimizer's class."""

    options: Options
    guard: LossScaleGuard | None
    _scales_losses = False  # Whether `scale_loss` was ever called.

    if TYPE_CHECKING:  # Other attributes are those of the optimizer's own class.

        def __getattr__(self, name: str) -> Any: ...

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

        All losses of a step have the same scale: a change by `apply` takes effect in the next step.
        A `tf.function` that several steps share may call this.

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
        return loss * tf.cast(self._scale_of_step(), loss.dtype)

    def _scale_of_step(self) -> tf.Tensor:
        """Returns the loss scale of this replica, which its step reads once.

        Asynchronous workers change it at any time. A `tf.function` that the step calls reads it
        separately, because other steps may call it too.
        """
        graph, log = call_log.step_graph(), call_log.enclosing()
        if graph is None or log is None or call_log.is_in_function():
            return self.loss_scale
        with graph.as_default():  # The step's graph, not that of a branch or a loop in it.
            by_log = _SCALES.setdefault(self, weakref.WeakKeyDictionary())
            scales = by_log.setdefault(log, weakref.WeakValueDictionary())
            replica = sums.static_replica_id()
            if replica not in scales:
                scales[replica] = self.loss_scale
            return scales[replica]

    def report_skipped(self) -> int:
        """Warns of steps that were skipped since the last report. Call it outside of steps.

        `num_skipped` is part of checkpoints; call `note_reported` after a restore, so that earlier
        steps are not reported again.

        Returns:
          The number of those steps.
        """
        before = getattr(self, "_num_reported", 0)
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

    def _update(
        self,
        updates: Sequence[Any],
        parameters: Sequence[tf.Variable],
        apply: Callable[[Sequence[Any]], Any],
    ) -> None:
        """Reduces the gradients over the replicas, then applies them on all replicas or on none.

        Args:
          updates: gradients of this replica: tensors, `tf.IndexedSlices` or None.
          parameters: one variable per gradient.
          apply: applies reduced gradients to this replica's copies of the parameters.

        Raises:
          ConfigError: if all gradients are None, if `loss_scale` is set and `scale_loss` was never
            called, or if a `tf.function` that the step calls would skip updates.
        """
        options = self.options
        enclosing = call_log.enclosing()
        if options.skips and call_log.is_in_function():
            # Another step that calls the function has its own statistics and its own end.
            raise errors.ConfigError(
                "expected optimizer.apply with skip_nonfinite or a dynamic loss scale outside of "
                "nested tf.functions, which keep the trace of their first step, found it in one; "
                "call it in step_fn itself"
            )
        if enclosing is not None:
            enclosing.reductions.add(options.reduction)
        build(self, parameters)  # Slots must not be created inside tf.cond, or in one replica.
        if options.reduction == "none":
            updates = gradients.widen(updates)
        else:
            updates = collectives.all_reduce(gradients.widen(updates), options.reduction)
        if all(update is None for update in updates):
            names = ", ".join(parameter.name for parameter in parameters)
            raise errors.ConfigError(
                f"expected a gradient for at least one parameter, got None for all ({names}); take "
                "the gradient of a loss that depends on them, computed inside the tape"
            )
        clips = any(getattr(self, name, None) for name in _CLIPPING)
        updates = [_merged(update, clips) for update in updates]
        if options.loss_scale is not None:
            if enclosing is not None and not self._scales_losses:
                raise errors.ConfigError(
                    "expected the gradient of optimizer.scale_loss(loss), found no call of it; "
                    "scale the loss before its gradient is taken"
                )
            updates = gradients.unscale(updates, self._scale_of_step())
        if options.max_global_norm is not None:
            updates = gradients.clip(updates, options.max_global_norm)
        updates = gradients.narrow(updates, parameters)
        if self.guard is None:
            apply(updates)
            return
        # Checked last, because clipping by an infinite norm and narrowing to float16 can make
        # values non-finite, too.
        finite = gradients.all_finite(updates)

        def apply_all() -> None:  # Returns None even if a user's own optimizer returns something.
            apply(updates)

        tf.cond(finite, apply_all, lambda: None)
        self.guard.update(finite)
        if enclosing is None:
            self.guard.adapt()
        else:
            enclosing.at_end[self.guard.adapt] = None
        statistics.restore_unless(finite)


def _merged(update: Any, optimizer_clips: bool) -> Any:
    """Sums the rows of each index if the optimizer's own sum would be wrong, or differ by replica.

    Keras clips rows before it sums them: the clipped gradient would depend on how often a row
    occurs. On GPUs, optimizers add rows in a different order on each replica.
    """
    if not isinstance(update, tf.IndexedSlices):
        return update
    merges = optimizer_clips or updates_lib.is_on_gpu(update)
    return updates_lib.merge_rows(update) if merges else update


class _Sonnet(Wrapped):
    """For optimizers whose `apply` reads and writes the replica's own variables."""

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        apply = super(Wrapped, self).apply  # type: ignore[misc]
        self._update(updates, parameters, lambda reduced: apply(reduced, parameters))


class _Keras(Wrapped):
    """For Keras optimizers: one `apply` for all, and `apply_gradients` as Keras has it."""

    def apply(self, updates: Sequence[Any], parameters: Sequence[tf.Variable]) -> None:
        self.apply_gradients(zip(updates, parameters, strict=True))

    def apply_gradients(
        self,
        grads_and_vars: Any,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        experimental_aggregate_gradients: bool = True,
    ) -> tf.Tensor:
        """Applies pairs of gradient and variable. Keras itself never reduces the gradients here.

        Args:
          grads_and_vars: the pairs.
          name: see Keras.
          skip_gradients_aggregation: whether the step itself has reduced the gradients; True
            requires `reduction="none"` in `wrap_optimizer`.
          experimental_aggregate_gradients: the opposite; an argument of Keras' older optimizers.

        Returns:
          The optimizer's number of steps so far, an int64 scalar.

        Raises:
          ConfigError: if the step has reduced the gradients and `reduction` is not "none".
        """
        is_reduced = skip_gradients_aggregation or not experimental_aggregate_gradients
        if is_reduced and self.options.reduction != "none":
            raise errors.ConfigError(
                "expected gradients for the optimizer to reduce, got reduced ones "
                "(skip_gradients_aggregation, or experimental_aggregate_gradients=False); use "
                'wrap_optimizer(..., reduction="none")'
            )
        pairs = list(grads_and_vars)
        parameters = [variable for _, variable in pairs]
        self._update(
            [gradient for gradient, _ in pairs],
            parameters,
            lambda reduced: self._apply_here(list(zip(reduced, parameters, strict=True)), name),
        )
        return tf.identity(self.iterations)

    def _apply_here(self, pairs: list[tuple[Any, tf.Variable]], name: str | None) -> None:
        raise NotImplementedError


class _ReplicaLocal:
    """Stands in for a strategy: applies updates in the calling replica, to its own copies."""

    @property
    def extended(self) -> "_ReplicaLocal":
        return self

    def update(
        self,
        variable: Any,
        function: Any,
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Calls `function(variable, *args, **kwargs)`; see `tf.distribute.StrategyExtended`."""
        del group
        return function(variable, *args, **(kwargs or {}))

    def colocate_vars_with(self, variable: Any) -> contextlib.AbstractContextManager[None]:
        """Returns a context without effect."""
        del variable
        return contextlib.nullcontext()


class _NewKeras(_Keras):
    """Keras 2.11 and later, whose updates would otherwise leave the replica for the strategy."""

    def _apply_here(self, pairs: Any, name: Any) -> None:
        super(Wrapped, self).apply_gradients(pairs, name=name, skip_gradients_aggregation=True)  # type: ignore[misc]

    def _internal_apply_gradients(self, grads_and_vars: Any) -> Any:
        return self._distributed_apply_gradients_fn(_ReplicaLocal(), grads_and_vars)

    def _apply_weight_decay(self, variables: Any) -> None:
        # The method of Keras' base class, which uses no strategy.
        super(tf.keras.optimizers.Optimizer, self)._apply_weight_decay(variables)  # type: ignore[misc]


class _LegacyKeras(_Keras):
    """Keras before 2.11, now tf.keras.optimizers.legacy."""

    def _apply_here(self, pairs: Any, name: Any) -> None:
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        variables = [variable for _, variable in pairs]
        state = self._prepare(variables)
        self._distributed_apply(_ReplicaLocal(), self._transform_gradients(pairs), state, name)

    def _trackable_children(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # Keras ties slots to their parameters, where tf.train.TrackableView does not see them.
        children = dict(super()._trackable_children(*args, **kwargs))  # type: ignore[misc]
        known = {id(child) for child in children.values()}
        slots = [weight for weight in self.weights if id(weight) not in known]
        return children | {f"slot_{i}": slot for i, slot in enumerate(slots)}


def wrap(optimizer: Any, options: Options) -> Any:
    """See `Replicator.wrap_optimizer`. Must be called in the replicator's scope.

    The object's class is replaced by a subclass, so the object keeps its attributes and its place
    in checkpoints, whatever the number of replicas.
    """
    if isinstance(optimizer, Wrapped):
        raise errors.ConfigError(
            f"expected an optimizer that is not wrapped yet, got {type(optimizer).__name__}; "
            "call wrap_optimizer once"
        )
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        raise errors.ConfigError(
            "expected an optimizer without a loss scale of its own, got LossScaleOptimizer; wrap "
            'the inner one with loss_scale="dynamic"'
        )
    if isinstance(optimizer, tf.keras.optimizers.Nadam):
        # It counts steps in a Python integer, which changes only while the step is traced.
        raise errors.ConfigError(
            "expected an optimizer whose state is in variables, got tf.keras.optimizers.Nadam, "
            "which keeps Python state between traces; use Adam"
        )
    if isinstance(optimizer, snt.Optimizer):
        mixin: type = _Sonnet
    elif isinstance(optimizer, tf.keras.optimizers.Optimizer):
        mixin = _NewKeras
        optimizer.jit_compile = False  # Otherwise it compiles every update separately.
        optimizer._distribution_strategy = _ReplicaLocal()
    elif isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        mixin = _LegacyKeras
        _check_aggregator(optimizer)
    else:
        raise errors.ConfigError(
            f"expected a Sonnet or Keras optimizer, got {type(optimizer).__name__}; "
            "use one of snt.optimizers, rr.optimizers or tf.keras.optimizers"
        )
    kind: Any = type(optimizer)
    make_class: Any = type(kind)
    body: dict[str, Any] = {"options": options, "__module__": kind.__module__}
    if kind.__module__.partition(".")[0] in _WITHOUT_AUTOGRAPH:
        for name in ("apply", "apply_gradients"):
            if method := getattr(mixin, name, None):
                body[name] = tf.autograph.experimental.do_not_convert(method)
    optimizer.__class__ = make_class(kind.__name__, (mixin, kind), body)
    optimizer.guard = LossScaleGuard(options.is_dynamic) if options.skips else None
    if mixin is _LegacyKeras and optimizer.guard is not None:
        optimizer._track_trackable(optimizer.guard, "guard")  # The others track it automatically.
    return optimizer


def _check_aggregator(optimizer: Any) -> None:
    default = tf.keras.optimizers.legacy.SGD().gradient_aggregator
    if optimizer.gradient_aggregator is not default:
        raise errors.ConfigError(
            "expected an optimizer without a gradient_aggregator, which reduces over replicas "
            "in another way; leave it out and choose wrap_optimizer's reduction"
        )


def build(optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
    """Creates the optimizer's slots; see `Replicator.build_optimizer`."""
    if not parameters:
        raise errors.ConfigError(
            "expected the parameters that the optimizer updates, got none; build the model on a "
            "first input before, or leave the optimizer out if nothing in it is trainable"
        )
    watched = slots.Parameters(parameters)
    try:
        if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
            with tf.init_scope(), _owned(parameters):
                optimizer._create_all_weights(watched)
        elif isinstance(optimizer, tf.keras.optimizers.Optimizer):
            with tf.init_scope(), _owned(parameters):
                optimizer.build(watched)
        else:
            initialize = getattr(optimizer, "_initialize", None)
            if initialize is not None:  # Optimizers without state, such as SGD, have no slots.
                _check_same(optimizer, parameters)
                initialize(watched)
    finally:
        watched.stop()


@contextlib.contextmanager
def _owned(parameters: Sequence[tf.Variable]) -> Iterator[None]:
    """Replaces Keras' error for a parameter that was not created in the scope of the strategy.

    A step that uses such a parameter would be refused, but only after slots have been created.
    """
    try:
        yield
    except ValueError:
        extended = tf.distribute.get_strategy().extended
        for parameter in parameters:
            if not extended.variable_created_in_scope(parameter):
                name = f"{parameter.name!r} {parameter.shape}"
                raise errors.created_outside(name) from None
        raise


def _check_same(optimizer: Any, parameters: Sequence[tf.Variable]) -> None:
    """Raises an error for parameters other than those for which a Sonnet optimizer has slots.

    Such an optimizer creates slots once and finds them by position, so it would use the slots of
    other parameters.
    """
    given = tuple(parameter.ref() for parameter in parameters)
    if _PARAMETERS.setdefault(optimizer, given) != given:
        first = ", ".join(known.deref().name for known in _PARAMETERS[optimizer])
        names = ", ".join(parameter.name for parameter in parameters)
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
