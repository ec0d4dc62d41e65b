"""A compiled Keras model as a learner, without a step written by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src import backend

from rl_replicator.backends.mesh.replicator import MeshReplicator
from rl_replicator.backends.parameter_server.replicator import MultiWorkerAsyncReplicator
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.learners.contract import (
    Evaluation,
    Learner,
    Served,
    annotation,
    are_names_of_a_graph,
)
from rl_replicator.optimizers import gradients
from rl_replicator.replicator import Replicator
from rl_replicator.step import scaled_losses
from rl_replicator.step.inputs import InputContext

_LOG = logging.getLogger(__name__)

# The dynamic loss scale of `wrap_optimizer`, as arguments of Keras' optimizer; its defaults, too.
_DYNAMIC_SCALE = {
    "initial_scale": gradients.INITIAL_SCALE,
    "dynamic_growth_steps": gradients.GROWTH_INTERVAL,
}


@dataclasses.dataclass(frozen=True)
class KerasConfig:
    """Settings of a learner from a Keras model. Subclass it to add the model's settings."""

    steps: int = 1000
    """Steps of the run."""
    global_batch_size: int = 32
    """Examples in a step, over all replicas."""
    evaluate_every: int = 500
    """Steps between evaluations."""

    def __post_init__(self) -> None:
        for name in ("steps", "global_batch_size", "evaluate_every"):
            value = getattr(self, name)
            check_option(value >= 1, name, "at least 1", value)


ModelFn = Callable[[Any], tf.keras.Model]
DataFn = Callable[[Any], tf.data.Dataset]


def from_keras(
    model_fn: ModelFn,
    data_fn: DataFn,
    evaluation_data_fn: DataFn | None = None,
    best: str = "-loss",
) -> Callable[[Replicator, Any], Learner]:
    """Returns a `make_learner` for `rl-replicator train module:make_learner`.

    A step is a step of the model's own `fit`, with the loss, loss weights, optimizer and loss scale
    of `compile`, and with the regularisation losses of its layers. If the model overrides
    `compute_loss`, that must return a mean over the batch. One difference: clipping counts each row
    of an embedding once; see `Replicator.wrap_optimizer`. N replicas take the same steps as one if
    all batch normalisation has `synchronized=True`. The metrics of `compile` are computed in
    evaluations; their variables must hold sums over examples, as those of Keras' metrics do.

    Args:
      model_fn: (config) -> compiled model. Its parameter is annotated with a frozen dataclass that
        extends `KerasConfig`, whose fields become options.
      data_fn: (config) -> training data: single examples (x, y) or (x, y, weight), the same
        examples in the same order at every call. `from_keras` repeats and batches them.
      evaluation_data_fn: (config) -> finite evaluation data, as above; None for no evaluation.
      best: figure that selects the best checkpoint: "accuracy" for the highest, "-loss" for the
        lowest.

    Returns:
      A function (replicator, config) -> learner.

    Raises:
      ConfigError: if `model_fn` does not annotate its parameter in this way.
    """
    config_type = _config_type(model_fn)

    def make_learner(replicator: Replicator, config: Any) -> Learner:
        return KerasLearner(replicator, config, model_fn, data_fn, evaluation_data_fn, best)

    make_learner.__annotations__["config"] = config_type
    make_learner.__annotations__["return"] = Learner
    make_learner.__annotations__["replicator"] = Replicator
    return make_learner


def _config_type(model_fn: ModelFn) -> type[KerasConfig]:
    found = annotation(model_fn)
    if isinstance(found, type) and issubclass(found, KerasConfig):
        return found
    raise ConfigError(
        "expected model_fn to annotate its parameter with a dataclass that extends "
        f"learners.KerasConfig, got {found or 'no annotation'}; write "
        "def model_fn(config: Config)"
    )


class KerasLearner(Learner):
    """Takes the steps of a compiled Keras model. Created by `from_keras`."""

    def __init__(
        self,
        replicator: Replicator,
        config: KerasConfig,
        model_fn: ModelFn,
        data_fn: DataFn,
        evaluation_data_fn: DataFn | None,
        best: str,
    ):
        """Creates all variables.

        Args:
          replicator: replicates the learner; the variables are created in its scope.
          config: settings.
          model_fn: see `from_keras`.
          data_fn: see `from_keras`.
          evaluation_data_fn: see `from_keras`.
          best: see `from_keras`.

        Raises:
          ConfigError: if the data are not a dataset, have no y, or are batches; if the model is not
            compiled, or has an average of the weights that a step does not apply, or a dynamic loss
            scale with other settings; if the result of a metric is not one number; if `best` names
            no figure; or if a mesh or concurrent asynchronous workers would have to evaluate.
        """
        if evaluation_data_fn is not None:
            _check_evaluates(replicator)
        self.num_steps = config.steps
        self.global_batch_size = config.global_batch_size
        self._config = config
        self._data_fn, self._evaluation_data_fn = data_fn, evaluation_data_fn
        self._best = best
        spec = _dataset("data_fn", data_fn, config).element_spec
        with replicator.scope(), _own_names():
            self._model = model_fn(config)
            if getattr(self._model, "compiled_loss", None) is None:
                raise ConfigError(
                    "expected model_fn to return a compiled model, got one that is not; call "
                    "model.compile(optimizer, loss) in it"
                )
            examples, predicted = self._build(spec)
            self._model.compiled_loss = _UndividedLoss(self._model.compiled_loss)
            inner, scale = _without_scale(self._model.optimizer)
            _check_average(inner)
            self._optimizer = replicator.wrap_optimizer(inner, reduction="sum", loss_scale=scale)
        self._parameters = self._model.trainable_variables
        if self._parameters:  # A frozen model has none, but can still be evaluated.
            replicator.build_optimizer(self._optimizer, self._parameters)
        self._alone = []
        if evaluation_data_fn is not None:  # Outside the scope, so that they belong to no replica.
            losses = [tf.keras.metrics.Mean(x.name) for x in _losses_of_outputs(self._model)]
            metrics = _copied_metrics(self._model.compiled_metrics, examples, predicted)
            self._alone = [*losses, *metrics]
        evaluation = self.evaluation()
        if evaluation is not None:
            evaluation.best_figure(["loss", *(metric.name for metric in self._alone)])

    def _build(self, spec: Any) -> tuple[Any, Any]:
        """Creates what Keras would create in the first step: weights, losses and metrics.

        Returns:
          Batches of zeros: one for y, and one for the model's predictions.
        """
        self._input_spec, y_spec, _ = tf.keras.utils.unpack_x_y_sample_weight(spec)
        zeros = tf.nest.map_structure(
            # Any size will do for an unknown dimension, such as the length of a text.
            lambda one: tf.zeros([1, *(size or 1 for size in one.shape)], one.dtype),
            (self._input_spec, y_spec),
        )
        predicted = self._model(zeros[0], training=False)
        self._model.compiled_loss.build(predicted)
        metrics = self._model.compiled_metrics
        # As in its update: y may be a dictionary, and may lack outputs without a loss.
        metrics.build(predicted, metrics._conform_to_outputs(predicted, zeros[1]))
        return zeros[1], tf.nest.map_structure(
            lambda one: tf.zeros(one.shape, one.dtype), predicted
        )

    def input_fn(self, context: InputContext) -> tf.data.Dataset:
        data = self._data_fn(self._config).repeat()
        size = context.per_replica_batch_size(self.global_batch_size)
        return context.shard(data.batch(size)).prefetch(tf.data.AUTOTUNE)

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, batch: Any) -> Mapping[str, tf.Tensor]:
        """Takes a step of the model's `fit`.

        Args:
          batch: (x, y) or (x, y, weight), with a leading axis [B].

        Returns:
          The loss, with the regularisation losses.
        """
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self._model(x, training=True)
            with scaled_losses.masked_means(tf.constant(1.0)):  # Replicas have equal batch sizes.
                loss = self._model.compute_loss(x, y, predicted, weight)
            # Gradients are summed over replicas: those of a loss with reduction="sum" must not be
            # averaged.
            scaled = self._optimizer.scale_loss(scaled_losses.divided(tf.cast(loss, tf.float32)))
        if self._parameters:
            gradients = tape.gradient(scaled, self._parameters)
            self._optimizer.apply(gradients, self._parameters)
        return {"loss": loss}

    def trackables(self) -> dict[str, Any]:
        return {
            "weights": _Weights(self._model),
            "optimizer": self._optimizer,
            "generators": _generator_states(self._model),
        }

    def evaluation(self) -> Evaluation | None:
        data_fn = self._evaluation_data_fn
        if data_fn is None:
            return None

        def input_fn(context: InputContext) -> tf.data.Dataset:
            size = context.per_replica_batch_size(self.global_batch_size)
            data = _dataset("evaluation_data_fn", data_fn, self._config)
            return context.shard(data.batch(size))

        return Evaluation(
            input_fn=input_fn,
            sums_fn=self._sums,
            metrics_fn=self._figures,
            global_batch_size=self.global_batch_size,
            every=self._config.evaluate_every,
            best=self._best,
        )

    @tf.autograph.experimental.do_not_convert
    def _sums(self, batch: Any, mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the sum of the loss and the states of the metrics, over the examples.

        Args:
          batch: see `step_fn`.
          mask: [B], 0 for padding.
        """
        # Padding is cut off, because Keras applies no weights to unweighted metrics and to activity
        # regularisation. If all rows are padding, one is kept but not counted, because not every
        # layer supports an empty batch (oneDNN's convolutions return wrong shapes).
        examples = tf.reduce_sum(mask)
        is_kept = (mask > 0) | ((examples == 0) & (tf.range(tf.size(mask)) == 0))
        batch = tf.nest.map_structure(lambda one: tf.boolean_mask(one, is_kept), batch)
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        predicted = self._model(x, training=False)
        self._model.compiled_loss.reset_state()
        with scaled_losses.masked_means(examples):
            loss = self._model.compute_loss(x, y, predicted, weight)
        sums = {"loss": tf.cast(loss, tf.float32) * examples}
        metrics = self._updated_metrics(y, predicted, weight)
        for metric in (*_losses_of_outputs(self._model), *metrics):
            sums |= {_key(metric, i): v.read_value() for i, v in enumerate(metric.variables)}
        sums = {name: tf.where(examples > 0, x, tf.zeros_like(x)) for name, x in sums.items()}
        return {"examples": examples, **sums}

    def _updated_metrics(self, y: Any, predicted: Any, weight: Any) -> list[Any]:
        """Returns the metrics of `compile` in the state after only these examples."""
        container = self._model.compiled_metrics
        num_variables = -1
        # Some metrics create their variables in the first update: the reset before had no effect.
        while num_variables < (present := sum(len(m.variables) for m in container.metrics)):
            num_variables = present
            for metric in container.metrics:
                metric.reset_state()
            container.update_state(y, predicted, weight)
        return container.metrics

    def _figures(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        figures = {"loss": float(sums["loss"] / sums["examples"])}
        for metric in self._alone:
            for i, variable in enumerate(metric.variables):
                variable.assign(tf.cast(sums[_key(metric, i)], variable.dtype))
            figures[metric.name] = float(metric.result())
        return figures

    def served(self) -> Served:
        """Returns the model, which maps inputs by name to `outputs`, or to its outputs by name.

        A single input is named `inputs`. Inputs in a dictionary have its keys as names, with `_` in
        place of characters other than letters and digits. Inputs in a tuple have the names of the
        model's `tf.keras.Input`s. Outputs in a list have the names of the layers that compute them.
        If any of these names is invalid in a graph, they are `inputs_0`, `inputs_1`, ... or
        `outputs_0`, `outputs_1`, ...
        """
        specs = self._input_spec
        flat = tf.nest.flatten(specs)
        names = _input_names(specs, getattr(self._model, "input_names", None))
        inputs = {
            name: tf.TensorSpec([None, *one.shape], one.dtype)
            for name, one in zip(names, flat, strict=True)
        }

        def function(**given: tf.Tensor) -> Mapping[str, tf.Tensor]:
            x = tf.nest.pack_sequence_as(specs, [given[name] for name in names])
            outputs = self._model(x, training=False)
            if isinstance(outputs, Mapping):
                return outputs
            if tf.is_tensor(outputs):
                return {"outputs": outputs}
            flat = tf.nest.flatten(outputs)
            of_model = getattr(self._model, "output_names", None)
            return dict(zip(_names("outputs", len(flat), of_model), flat, strict=True))

        return Served(function, inputs, [self._model])


def _dataset(name: str, data_fn: DataFn, config: KerasConfig) -> tf.data.Dataset:
    """Returns the data of a function, whose name is for errors.

    Raises:
      ConfigError: if the data are not a dataset, have no y, or are batches.
    """
    data = data_fn(config)
    if not isinstance(data, tf.data.Dataset):
        raise ConfigError(
            f"expected {name} to return a tf.data.Dataset of single examples, got "
            f"{type(data).__name__}; return tf.data.Dataset.from_tensor_slices((x, y))"
        )
    _, y, _ = tf.keras.utils.unpack_x_y_sample_weight(data.element_spec)
    if y is None:
        raise ConfigError(
            f"expected {name} to return examples (x, y) or (x, y, weight), got x alone; return "
            "x as y, too, as in data.map(lambda x: (x, x))"
        )
    _check_single(name, data)
    return data


def _check_single(name: str, data: tf.data.Dataset) -> None:
    """Checks that the user has not batched the data, as for `fit`.

    Raises:
      ConfigError: if the data are batches.
    """
    sizes = {one.shape[0] if one.shape.rank else 0 for one in tf.nest.flatten(data.element_spec)}
    if len(sizes) > 1 or 0 in sizes or not _has_batched(data):
        return
    (size,) = sizes
    if size is None:
        raise ConfigError(
            f"expected {name} to return single examples, got batches; leave out batch(): the "
            "learner batches them by --global-batch-size"
        )
    # It may be a sequence, whose entries batch() has joined into one example.
    _LOG.warning(
        "%s: each example has %d entries, from batch(); if these are examples themselves, leave "
        "out batch(): the learner batches by --global-batch-size",
        name,
        size,
    )


def _has_batched(data: tf.data.Dataset) -> bool:
    kind = type(data).__name__
    if any(word in kind for word in ("Unbatch", "FlatMap", "Interleave")):
        return False  # Its elements are parts of the elements of its input.
    return "Batch" in kind or any(map(_has_batched, data._inputs()))


@contextlib.contextmanager
def _own_names() -> Iterator[None]:
    """Makes Keras name metrics as in a new process, such as "auc", not "auc_1".

    They name the figures, which must keep their names if a run is continued in a process that has
    trained others. The numbering of layers continues: a model may hold layers that were created
    before, and names in a model must differ.
    """
    classes = {cls.__name__.lower() for cls in _subclasses(tf.keras.metrics.Metric)}
    counts = backend.get_default_graph_uid_map()
    before = {key: n for key, n in counts.items() if key[1].replace("_", "") in classes}
    for key in before:
        del counts[key]
    try:
        yield
    finally:
        counts.update(before)


def _subclasses(cls: type) -> Iterator[type]:
    subclass: type
    for subclass in cls.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _check_evaluates(replicator: Replicator) -> None:
    """Raises `ConfigError` for a replicator that cannot compute the metrics of a Keras model."""
    if isinstance(replicator, MeshReplicator):
        raise ConfigError(
            "expected a replicator that evaluates Keras models, got a mesh, whose batches "
            "cannot be cut to their examples; call from_keras without evaluation_data_fn, or "
            "use multi_device"
        )
    if isinstance(replicator, MultiWorkerAsyncReplicator) and replicator.is_concurrent:
        raise ConfigError(
            "expected a replicator that evaluates Keras models, got "
            f"{replicator.num_workers} asynchronous workers, which would add to each other's "
            "metrics; call from_keras without evaluation_data_fn, or use multi_worker or "
            "multi_worker_async:max_staleness=0"
        )


def _input_names(specs: Any, of_model: Sequence[str] | None) -> list[str]:
    """Returns the names of a model's inputs, in the order of `tf.nest.flatten(specs)`.

    Args:
      specs: specs of x in the training data.
      of_model: see `_names`.
    """
    if isinstance(specs, tf.TypeSpec):
        return ["inputs"]
    if isinstance(specs, Mapping) and all(isinstance(x, tf.TypeSpec) for x in specs.values()):
        of_model = [str(key) for key in sorted(specs)]
    return _names("inputs", len(tf.nest.flatten(specs)), of_model)


def _names(kind: str, count: int, of_model: Sequence[str] | None) -> list[str]:
    """Returns the names of a model's inputs or outputs.

    Args:
      kind: prefix of numbered names, for a model without usable ones.
      count: number of inputs or outputs.
      of_model: names that the model gives to them; none for a subclassed model.
    """
    names = [re.sub(r"\W", "_", name, flags=re.ASCII) for name in of_model or ()]
    if len(names) == count and are_names_of_a_graph(names):
        return names
    return [f"{kind}_{i}" for i in range(count)]


class _UndividedLoss:
    """The `compiled_loss` of a model, multiplied by the number of replicas.

    Keras divides it by this number, but not the means that a model's own `compute_loss` adds to it.
    This undoes the division, so that the caller can divide the result of `compute_loss` once.
    """

    def __init__(self, compiled_loss: Any):
        self._compiled_loss = compiled_loss

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loss = self._compiled_loss(*args, **kwargs)
        return loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled_loss, name)


class _Weights(tf.Module):
    """The weights of a model and its moving statistics, without the states of metrics."""

    def __init__(self, model: tf.keras.Model):
        super().__init__()
        self.by_layer = _by_layer(model)


def _by_layer(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the weights of a model in an order that does not depend on which layers are frozen.

    Keras puts the weights of frozen parts of a layer after the others.
    """
    layers = [x for x in (model, *model.submodules) if isinstance(x, tf.keras.layers.Layer)]
    # Not through `trainable`, which also sets the attribute of the layers within a layer.
    frozen = [layer for layer in layers if not layer._trainable]
    try:
        for layer in frozen:
            layer._trainable = True
        return model.weights
    finally:
        for layer in frozen:
            layer._trainable = False


def _generator_states(model: tf.keras.Model) -> list[tf.Variable]:
    """Returns the states of a model's random generators, which are not weights.

    Those of Keras' random layers are also hidden from checkpoints.
    """
    hidden = [getattr(module, "_random_generator", None) for module in model.submodules]
    return [
        node.state
        for root in (model, *(one for one in hidden if one is not None))
        for node in tf.train.TrackableView(root).descendants()
        if isinstance(node, tf.random.Generator)
    ]


def _losses_of_outputs(model: tf.keras.Model) -> list[Any]:
    """Returns the metrics that average the loss of each output; none for a single output.

    `compute_loss` updates them.
    """
    return model.compiled_loss.metrics[1:]  # The first one is that of the total loss.


def _copied_metrics(container: Any, y: Any, predicted: Any) -> list[Any]:
    """Copies the metrics of a compiled model, with variables that are created in an update.

    Args:
      container: `compiled_metrics` of the model.
      y: example targets.
      predicted: example predictions.

    Raises:
      ConfigError: if the result of a metric is not one number, or it cannot be copied.
    """
    copies = []
    with contextlib.ExitStack() as stack:
        for metric in container.metrics:
            copy = _copied_metric(metric)
            copies.append(copy)
            # The container selects the arguments of each metric, and passes them to its copy here.
            stack.callback(setattr, metric, "update_state", metric.update_state)
            metric.update_state = copy.update_state
        container.update_state(y, predicted)
    for copy in copies:
        result = copy.result()
        if isinstance(result, Mapping) or tf.rank(result) > 0:
            raise ConfigError(
                f"expected metrics whose result is one number, got {copy.name!r} with "
                f"{sorted(result) if isinstance(result, Mapping) else tuple(result.shape)}; let it "
                'average, such as F1Score(average="macro")'
            )
    return copies


def _copied_metric(metric: Any) -> Any:
    """Recreates a metric from its config; raises `ConfigError` if that lacks an argument."""
    kind, config = type(metric), metric.get_config()
    lacking: list[str] = []
    # Those of Keras omit arguments that follow from others.
    if not kind.__init__.__module__.startswith("keras."):
        parameters = inspect.signature(kind).parameters.values()
        named = [x.name for x in parameters if x.kind not in (x.VAR_POSITIONAL, x.VAR_KEYWORD)]
        lacking = [repr(name) for name in named if name not in config]
    got = f"none of {', '.join(lacking)}"
    if not lacking:
        try:
            return kind.from_config(config)
        except TypeError as error:
            got = str(error).rpartition("\n")[2].removeprefix("Exception encountered: ")
    raise ConfigError(
        "expected metrics whose get_config() has the arguments of their constructor, got "
        f"{metric.name!r} of {kind.__name__}: {got}; add get_config() to the class"
    )


def _key(metric: Any, index: int) -> str:
    return f"{metric.name}/{index}"


def _without_scale(optimizer: Any) -> tuple[Any, float | str | None]:
    """Returns an optimizer without Keras's loss scale, and the scale for `wrap_optimizer`.

    Raises:
      ConfigError: if a dynamic loss scale has other settings than that of `wrap_optimizer`.
    """
    if not isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        return optimizer, None
    if not optimizer.dynamic:
        return optimizer.inner_optimizer, float(optimizer.initial_scale)
    got = {name: getattr(optimizer, name) for name in _DYNAMIC_SCALE}
    if got != _DYNAMIC_SCALE:
        described = [
            " and ".join(f"{name}={value:g}" for name, value in settings.items())
            for settings in (_DYNAMIC_SCALE, got)
        ]
        raise ConfigError(
            f"expected a dynamic loss scale with {described[0]}, got {described[1]}; leave them "
            "out, or use dynamic=False"
        )
    return optimizer.inner_optimizer, "dynamic"


def _check_average(optimizer: Any) -> None:
    """Raises `ConfigError` if Keras would replace the weights by their average only after `fit`."""
    if getattr(optimizer, "use_ema", False) and not optimizer.ema_overwrite_frequency:
        raise ConfigError(
            "expected an average of the weights (use_ema) that is applied during training, got "
            "one that fit applies at its end; set ema_overwrite_frequency, such as to the steps "
            "between evaluations"
        )
