"""A compiled Keras model as a learner, without a step written by hand."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rl_replicator.backends.mesh.replicator import MeshReplicator
from rl_replicator.backends.parameter_server.replicator import MultiWorkerAsyncReplicator
from rl_replicator.collectives import call_log
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.learners.contract import (
    Evaluation,
    Learner,
    Served,
    annotation,
    are_names_of_a_graph,
)
from rl_replicator.replicator import Replicator
from rl_replicator.step.inputs.contract import InputContext


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


# Keys among the sums of an evaluation, unlike any figure of a model: the number of examples, and,
# in front of a metric's name, of those for which `test_step` returned something else by this name.
_EXAMPLES, _OTHER = "/examples", "/other/"
# Relative. The same metric, computed twice, may be rounded differently.
_ROUNDING = 1e-4

ModelFn = Callable[[Any], tf.keras.Model]
DataFn = Callable[[Any], tf.data.Dataset]
ServedFn = Callable[[Any], tf.keras.Model]


def from_keras(
    model_fn: ModelFn,
    data_fn: DataFn,
    evaluation_data_fn: DataFn | None = None,
    best: str = "-loss",
    served_fn: ServedFn | None = None,
) -> Callable[[Replicator, Any], Learner]:
    """Returns a `make_learner` for `rl-replicator train module:make_learner`.

    A step is the model's `train_step`, as in `fit`: Keras' own, with the loss, loss weights,
    optimizer and loss scale of `compile` and the losses of the layers, or the model's. Losses are
    means over the batch, or objects of Keras with `Reduction.SUM`. Metrics are of one batch. One
    difference: clipping counts each row of an embedding once; see `Replicator.wrap_optimizer`. N
    replicas take the same steps as one if all batch normalisation has `synchronized=True`. An
    evaluation is the model's `test_step`, as in `evaluate`; the variables of its metrics must hold
    sums over examples, as those of Keras' metrics do.

    Args:
      model_fn: (config) -> compiled model. Its parameter is annotated with a frozen dataclass that
        extends `KerasConfig`, whose fields become options.
      data_fn: (config) -> training data: single examples, such as (x, y) or (x, y, weight), the
        same examples in the same order at every call. `from_keras` repeats and batches them.
      evaluation_data_fn: (config) -> finite evaluation data, as above; None for no evaluation.
      best: figure that selects the best checkpoint: "accuracy" for the highest, "-loss" for the
        lowest. "-loss" is also the only figure of a model without a loss, whatever its name.
      served_fn: (model) -> the part of it to export, such as a GAN's generator: a model with
        `tf.keras.Input`s; None for the whole model, if it has a `call`.

    Returns:
      A function (replicator, config) -> learner.

    Raises:
      ConfigError: if `model_fn` does not annotate its parameter in this way.
    """
    config_type = annotation(model_fn)
    if not (isinstance(config_type, type) and issubclass(config_type, KerasConfig)):
        raise ConfigError(
            "expected model_fn to annotate its parameter with a dataclass that extends "
            f"learners.KerasConfig, got {config_type or 'no annotation'}; write "
            "def model_fn(config: Config)"
        )

    def make_learner(replicator: Replicator, config: Any) -> Learner:
        return KerasLearner(
            replicator, config, model_fn, data_fn, evaluation_data_fn, best, served_fn
        )

    make_learner.__annotations__["config"] = config_type
    return make_learner


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
        served_fn: ServedFn | None,
    ):
        """Creates the model.

        Args:
          replicator: replicates the learner; the variables are created in its scope.
          config: settings.
          model_fn: see `from_keras`.
          data_fn: see `from_keras`.
          evaluation_data_fn: see `from_keras`.
          best: see `from_keras`.
          served_fn: see `from_keras`.

        Raises:
          ConfigError: if the data are not a dataset, or are batches; if the model is not compiled,
            or has an average of the weights that a step does not apply; or if a mesh or concurrent
            asynchronous workers would have to evaluate.
        """
        if evaluation_data_fn is not None:
            _check_evaluates(replicator)
        self.num_steps = config.steps
        self.global_batch_size = config.global_batch_size
        self._replicator = replicator
        self._config = config
        self._data_fn, self._evaluation_data_fn = data_fn, evaluation_data_fn
        self._best, self._served_fn = best, served_fn
        spec = _dataset("data_fn", data_fn, config).element_spec
        self._input_spec, y_spec, _ = tf.keras.utils.unpack_x_y_sample_weight(spec)
        tf.keras.backend.reset_uids()  # Metrics have the names that they have in a new process.
        with replicator.scope():
            self._model = model_fn(config)
            if getattr(self._model, "compiled_loss", None) is None:
                raise ConfigError(
                    "expected model_fn to return a compiled model, got one that is not; call "
                    "model.compile(optimizer, loss) in it"
                )
            self._build(y_spec)
            self._model.compiled_loss = _UndividedLoss(self._model.compiled_loss)
            _undivide_sums(self._model)
            self._optimizers = _wrap_optimizers(replicator, self._model)

    @property
    def _has_call(self) -> bool:
        """Whether the model is a function; one that holds others, such as a GAN, may not be."""
        return type(self._model).call is not tf.keras.Model.call

    def _build(self, y_spec: Any) -> None:
        """Creates what Keras would create in the first step: weights, losses and metrics."""
        if not self._has_call:
            return
        rows = self.global_batch_size // self._replicator.num_replicas or 1

        def zeros(spec: tf.TensorSpec) -> tf.Tensor:
            # Any size will do for an unknown dimension, such as the length of a text.
            return tf.zeros([rows, *(size or 1 for size in spec.shape)], spec.dtype)

        predicted = self._model(tf.nest.map_structure(zeros, self._input_spec), training=False)
        self._model.compiled_loss.build(predicted)
        y = None if y_spec is None else tf.nest.map_structure(zeros, y_spec)
        metrics = self._model.compiled_metrics
        # As in its update: y may be a dictionary, and may lack outputs without a loss.
        metrics.build(predicted, metrics._conform_to_outputs(predicted, y))
        predicted = tf.nest.map_structure(lambda one: tf.zeros(one.shape, one.dtype), predicted)
        self._examples = (y, predicted)

    def input_fn(self, context: InputContext) -> tf.data.Dataset:
        data = self._data_fn(self._config).repeat()
        size = context.per_replica_batch_size(self.global_batch_size)
        # The data are repeated; a static size saves gradients the computation of shapes.
        return context.shard(data.batch(size, drop_remainder=True)).prefetch(tf.data.AUTOTUNE)

    def step_fn(self, batch: Any) -> Mapping[str, tf.Tensor]:
        """Takes a step of the model's `fit`.

        Args:
          batch: an example of the data with a leading axis [B].

        Returns:
          The scalars that `train_step` returns, and the means of what else it returns in floats.
        """
        self._reset_metrics()
        found = self._model.train_step(batch)
        return {
            name: x if x.shape.rank == 0 else tf.reduce_mean(x)
            for name, x in found.items()
            if tf.is_tensor(x) and (x.shape.rank == 0 or x.dtype.is_floating)
        }

    def _reset_metrics(self) -> None:
        if any(not metric.variables for metric in self._model.metrics):
            # Some metrics create their variables in the first update.
            self._model.compiled_metrics.update_state(*self._examples)
        for metric in self._model.metrics:
            metric.reset_state()

    def trackables(self) -> dict[str, Any]:
        return {
            "weights": _Weights(self._model),
            **self._optimizers,
            "generators": _generator_states(self._model),
        }

    def evaluation(self) -> Evaluation | None:
        data_fn = self._evaluation_data_fn
        if data_fn is None:
            return None
        kind = type(self._model)
        if not self._has_call and kind.test_step is tf.keras.Model.test_step:
            raise ConfigError(
                f"expected {kind.__name__} to have a test_step or a call, for evaluation_data_fn, "
                "got neither; define test_step, or leave evaluation_data_fn out"
            )

        def input_fn(context: InputContext) -> tf.data.Dataset:
            size = context.per_replica_batch_size(self.global_batch_size)
            data = _dataset("evaluation_data_fn", data_fn, self._config)
            return context.shard(data.batch(size))

        best, names = self._best, [metric.name for metric in self._model.metrics]
        if best == "-loss" and len(names) == 1:
            best = f"-{names[0]}"
        return Evaluation(
            input_fn=input_fn,
            sums_fn=self._sums,
            metrics_fn=self._figures,
            global_batch_size=self.global_batch_size,
            every=self._config.evaluate_every,
            best=best,
        )

    def _sums(self, batch: Any, mask: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the states of the metrics after only these examples.

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
        self._reset_metrics()
        found = self._model.test_step(batch)
        self._check_figures(found)
        self._figure_names = [*found]
        sums = {str(i): x.read_value() for i, x in enumerate(self._metric_variables())}
        # What `test_step` returns itself counts as the mean over its examples. It may have the name
        # of a metric: every compiled model has one called loss.
        means = {name: tf.cast(x, tf.float32) for name, x in found.items()}
        sums |= {name: mean * examples for name, mean in means.items()}
        for metric in self._model.metrics:
            if metric.name in means:
                is_other = _differ(means[metric.name], tf.cast(metric.result(), tf.float32))
                sums[_OTHER + metric.name] = tf.where(is_other, examples, 0.0)
        sums = {name: tf.where(examples > 0, x, tf.zeros_like(x)) for name, x in sums.items()}
        return sums | {_EXAMPLES: examples}

    def _check_figures(self, found: Mapping[str, Any]) -> None:
        for name, result in found.items():
            if isinstance(result, Mapping) or tf.convert_to_tensor(result).shape.rank:
                raise ConfigError(
                    f"expected metrics whose result is one number, got several of {name!r}; let it "
                    'average, such as F1Score(average="macro")'
                )
        evaluation = self.evaluation()
        if evaluation is not None:
            evaluation.best_figure(found)

    def _metric_variables(self) -> list[tf.Variable]:
        return [variable for metric in self._model.metrics for variable in metric.variables]

    def _figures(self, sums: Mapping[str, np.ndarray]) -> dict[str, float]:
        with self._replicator.scope():
            for i, variable in enumerate(self._metric_variables()):
                variable.assign(tf.cast(sums[str(i)], variable.dtype))
            results = {
                metric.name: float(metric.result())
                for metric in self._model.metrics
                if sums.get(_OTHER + metric.name) == 0
            }
        return {
            name: results[name] if name in results else float(sums[name] / sums[_EXAMPLES])
            for name in self._figure_names
        }

    def served(self) -> Served | None:
        """Returns the model, which maps inputs by name to `outputs`, or to its outputs by name.

        A single input is named `inputs`. Inputs in a dictionary have its keys as names, with `_` in
        place of characters other than letters and digits. Inputs in a tuple have the names of the
        model's `tf.keras.Input`s. Outputs in a list have the names of the layers that compute them.
        If any of these names is invalid in a graph, they are `inputs_0`, `inputs_1`, ... or
        `outputs_0`, `outputs_1`, ...

        Raises:
          ConfigError: if the model has no `call`, or `served_fn` returns a part without inputs.
        """
        model, specs = self._model, self._input_spec
        if self._served_fn is not None:
            model = self._served_fn(model)
            specs = _input_specs(model)
        elif not self._has_call:
            raise ConfigError(
                f"expected {type(model).__name__} to have a call, or a part to export, got neither;"
                " call from_keras(..., served_fn=lambda model: model.generator)"
            )
        flat = tf.nest.flatten(specs)
        of_model = getattr(model, "input_names", None)
        if isinstance(specs, Mapping) and all(isinstance(x, tf.TypeSpec) for x in specs.values()):
            of_model = [str(key) for key in sorted(specs)]
        is_single = isinstance(specs, tf.TypeSpec)
        names = ["inputs"] if is_single else _names("inputs", len(flat), of_model)
        inputs = {
            name: tf.TensorSpec([None, *one.shape], one.dtype)
            for name, one in zip(names, flat, strict=True)
        }

        def function(**given: tf.Tensor) -> Mapping[str, tf.Tensor]:
            x = tf.nest.pack_sequence_as(specs, [given[name] for name in names])
            outputs = model(x, training=False)
            if isinstance(outputs, Mapping):
                return outputs
            if tf.is_tensor(outputs):
                return {"outputs": outputs}
            flat = tf.nest.flatten(outputs)
            of_model = getattr(model, "output_names", None)
            return dict(zip(_names("outputs", len(flat), of_model), flat, strict=True))

        return Served(function, inputs, [model])


def _differ(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    """Returns whether two float32 scalars are different figures; NaN is equal to NaN."""
    size = tf.maximum(tf.abs(one), tf.abs(other))
    is_near = tf.abs(one - other) <= _ROUNDING * size
    return ~(is_near | (tf.math.is_nan(one) & tf.math.is_nan(other)))


def _input_specs(model: Any) -> Any:
    """Returns the specs of one example of each input of a model.

    Raises:
      ConfigError: if it has no `tf.keras.Input`s.
    """
    if not (isinstance(model, tf.keras.Model) and getattr(model, "inputs", None)):
        raise ConfigError(
            "expected served_fn to return a model with tf.keras.Inputs, got "
            f"{type(model).__name__}; return a Sequential or functional part of the model"
        )
    return tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape[1:], x.dtype), model.input)


def _dataset(name: str, data_fn: DataFn, config: KerasConfig) -> tf.data.Dataset:
    """Returns the data of a function, whose name is for errors.

    Raises:
      ConfigError: if the data are not a dataset, or are batches.
    """
    data = data_fn(config)
    if not isinstance(data, tf.data.Dataset):
        raise ConfigError(
            f"expected {name} to return a tf.data.Dataset of single examples, got "
            f"{type(data).__name__}; return tf.data.Dataset.from_tensor_slices((x, y))"
        )
    if all(one.shape.rank and one.shape[0] is None for one in tf.nest.flatten(data.element_spec)):
        raise ConfigError(
            f"expected {name} to return single examples, got batches; leave out batch(): the "
            "learner batches them by --global-batch-size. If they are sequences, give them their "
            "length by tf.ensure_shape"
        )
    return data


def _check_evaluates(replicator: Replicator) -> None:
    """Raises `ConfigError` for a replicator that cannot compute the metrics of a Keras model.

    The batches of a mesh cannot be cut to their examples, and concurrent workers would add to each
    other's metrics.
    """
    is_concurrent = isinstance(replicator, MultiWorkerAsyncReplicator) and replicator.is_concurrent
    if is_concurrent or isinstance(replicator, MeshReplicator):
        raise ConfigError(
            "expected a replicator that evaluates Keras models, got "
            f"{'asynchronous workers' if is_concurrent else 'a mesh'}; call from_keras without "
            "evaluation_data_fn, or use multi_device, multi_worker or "
            "multi_worker_async:max_staleness=0"
        )


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
    """The `compiled_loss` of a model, or a loss that sums, multiplied by the number of replicas.

    Keras divides a mean by this number, because it sums gradients; here they are averaged, as those
    of the model's own losses. A sum over the replica's batch is multiplied, so that the average of
    the gradients is that of the sum over the global batch.
    """

    def __init__(self, compiled_loss: Any):
        self._compiled_loss = compiled_loss

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        log = call_log.enclosing()
        others = set() if log is None else set(log.scaled_by)
        loss = self._compiled_loss(*args, **kwargs)
        if log is not None:
            log.scaled_by = others  # The division is undone here.
        return loss * tf.cast(tf.distribute.get_strategy().num_replicas_in_sync, loss.dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy` asks for these before there is a loss.
            raise AttributeError(name)
        return getattr(self._compiled_loss, name)


def _undivide_sums(model: tf.keras.Model) -> None:
    """Replaces the losses with `Reduction.SUM` among the attributes of a model and its layers."""
    for module in (model, *model.submodules):
        for name, loss in list(vars(module).items()):
            is_loss = isinstance(loss, tf.keras.losses.Loss)
            if is_loss and loss.reduction == tf.keras.losses.Reduction.SUM:
                setattr(module, name, _UndividedLoss(loss))


class _Optimizer:
    """A wrapped optimizer, as a `train_step` calls it: with the methods of a loss scale, too."""

    def __init__(self, wrapped: Any):
        self._wrapped = wrapped

    def minimize(
        self, loss: Any, var_list: Sequence[tf.Variable], tape: tf.GradientTape | None = None
    ) -> None:
        """Updates variables; see Keras."""
        tape = tape or tf.GradientTape()
        with tape:
            scaled = self.get_scaled_loss(loss() if callable(loss) else loss)
        if var_list:  # A frozen model has none.
            self.apply_gradients(zip(tape.gradient(scaled, var_list), var_list, strict=True))

    def apply_gradients(self, grads_and_vars: Any, **kwargs: Any) -> Any:
        """Averages the gradients over the replicas, and applies them."""
        return self._wrapped.apply_gradients(grads_and_vars, **kwargs)

    def get_scaled_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """Multiplies a loss by the loss scale."""
        return self._wrapped.scale_loss(tf.cast(loss, tf.float32))

    def get_unscaled_gradients(self, gradients: Any) -> Any:
        """Returns the gradients, because `apply_gradients` divides them by the loss scale."""
        return gradients

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def _wrap_optimizers(replicator: Replicator, model: tf.keras.Model) -> dict[str, Any]:
    """Replaces the optimizers among the attributes of a model; returns the wrapped ones by name.

    Raises:
      ConfigError: if Keras would replace the weights by their average only after `fit`.
    """
    found: dict[str, Any] = {}
    for name, optimizer in list(vars(model).items()):
        if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
            continue
        scale: float | str | None = None
        if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
            scale = "dynamic" if optimizer.dynamic else float(optimizer.initial_scale)
            optimizer = optimizer.inner_optimizer
        if getattr(optimizer, "use_ema", False) and not optimizer.ema_overwrite_frequency:
            raise ConfigError(
                "expected an average of the weights (use_ema) that is applied during training, got "
                "one that fit applies at its end; set ema_overwrite_frequency, such as to the "
                "steps between evaluations"
            )
        found[name] = replicator.wrap_optimizer(optimizer, loss_scale=scale)
        setattr(model, name, _Optimizer(found[name]))
    return found


class _Weights(tf.Module):
    """The weights of a model and its moving statistics, without the states of metrics.

    The names of the two lists tell that a run is continued with other frozen layers.
    """

    def __init__(self, model: tf.keras.Model):
        super().__init__()
        metrics = [x for x in model.submodules if isinstance(x, tf.keras.metrics.Metric)]
        states = {id(variable) for metric in metrics for variable in metric.variables}
        self.trainable = model.trainable_weights
        self.not_trainable = [x for x in model.non_trainable_weights if id(x) not in states]

    @property
    def all(self) -> list[tf.Variable]:
        """The trainable ones, then the others."""
        return [*self.trainable, *self.not_trainable]


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
