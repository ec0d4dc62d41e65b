"""The contract of learners. `rl-replicator train module:make_learner` expects this function:

    def make_learner(replicator: rr.Replicator, config: Config) -> Learner

`Config` is a frozen dataclass with a default for each field; its fields become options. The learner
creates its variables in `replicator.scope()` and wraps its optimizers with
`replicator.wrap_optimizer`. The training loop does the rest: replicas, checkpoints, metrics,
progress, evaluation, and resuming.
"""

import abc
import dataclasses
import inspect
import keyword
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from rl_replicator.errors import ConfigError, check_count

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from rl_replicator.step.inputs.contract import InputContext, InputFn

StepFn = Callable[[Any], "Mapping[str, tf.Tensor]"]


def annotation(function: Callable[..., Any], name: str | None = None) -> Any:
    """Returns the annotation of a parameter; those of others need not be defined at run time.

    Args:
      function: a function, a class, or a partial of one.
      name: name of the parameter; None for the first one.

    Returns:
      The annotation: a type, or its text if it cannot be evaluated. None if there is none.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Functions in C may have none.
        return None
    parameter = parameters.get(name or next(iter(parameters), ""))
    if parameter is None or parameter.annotation is inspect.Parameter.empty:
        return None
    found = parameter.annotation
    if isinstance(found, str):
        function = inspect.unwrap(getattr(function, "func", function))  # That of a partial.
        try:
            found = eval(found, vars(sys.modules[function.__module__]))
        except Exception:
            return found
    return get_args(found)[0] if get_origin(found) is Annotated else found


@dataclasses.dataclass(frozen=True)
class Phase:
    """One of the step functions that make up a step of the learner.

    Attributes:
      name: prefix of its metrics' names: "discriminator" for `discriminator_loss`.
      step_fn: see `Learner.step_fn`.
      times: number of times that it runs in a step of the learner, each time with a new batch.
    """

    name: str
    step_fn: StepFn
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Reference:
    """Sums with which every evaluation compares its own, such as sums over real images.

    They are computed before the first evaluation of a run, and again in a continued run, so they
    must not depend on trained variables. All replicas compute them; a signal interrupts the
    computation.

    Attributes:
      input_fn: see `Evaluation`.
      sums_fn: see `Evaluation`.
    """

    input_fn: "InputFn"
    sums_fn: "Callable[[Any, tf.Tensor], Mapping[str, tf.Tensor]]"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """An evaluation on finite data: sums that count every example once, and figures from them.

    Attributes:
      input_fn: maps an `InputContext` to a finite dataset of batches of at most the per-replica
        size; the last batch may be smaller. `context.shard` returns a process's part of the data.
      sums_fn: maps (batch, mask) to sums over the batch, by name. The mask, [per-replica batch]
        float32, is 1 for an example and 0 for padding.
      metrics_fn: maps the sums over all examples (NumPy, float64 or int64) to figures by name.
        `rl-replicator plot` draws the figure that `best` names. Its second argument is the sums of
        `reference`, if there is one. It runs in the main thread, so a signal waits for it. Without
        `reference`, it is also called before the first step, with ones, to check the names.
      global_batch_size: number of examples in a batch, over all replicas.
      every: number of steps between evaluations, at least 1. There is always one after the last
        step.
      best: figure that selects the best checkpoint: "accuracy" for the highest, "-loss" for the
        lowest.
      reference: sums over other data, to compare with; None for none.
    """

    input_fn: "InputFn"
    sums_fn: "Callable[[Any, tf.Tensor], Mapping[str, tf.Tensor]]"
    metrics_fn: "Callable[..., Mapping[str, float]]"
    global_batch_size: int
    every: int
    best: str
    reference: Reference | None = None

    def __post_init__(self) -> None:
        remedy = "round it, or return None from evaluation() for none"
        check_count("every of an Evaluation", self.every, remedy)

    def best_figure(self, names: Iterable[str]) -> str:
        """Returns the name of the figure that `best` names.

        Args:
          names: names of all figures.

        Raises:
          ConfigError: if it is none of them.
        """
        name = self.best.removeprefix("-")
        names = [*names]
        if name not in names:
            raise ConfigError(
                f"expected best of the evaluation to be one of {', '.join(names)}, got "
                f"{self.best!r}; name a figure, with '-' before it if the lowest is best"
            )
        return name


def are_names_of_a_graph(names: Sequence[str]) -> bool:
    """Returns whether a graph, and so an export, keeps names of inputs or outputs unchanged."""
    are_usable = all(
        re.fullmatch("[A-Za-z][A-Za-z0-9_]*", name) and not keyword.iskeyword(name)
        for name in names
    )
    return are_usable and len({name.lower() for name in names}) == len(names)


def _check_names(what: str, names: Sequence[str]) -> None:
    if not are_names_of_a_graph(names):
        raise ConfigError(
            f"expected {what} of served() with names of letters from A to Z, digits and '_', which "
            f"begin with a letter and differ in more than case, got {', '.join(map(repr, names))}; "
            "rename them"
        )


@dataclasses.dataclass(frozen=True)
class Served:
    """The function that a learner is trained for.

    Attributes:
      function: takes tensors by keyword, and returns tensors by name. It uses no dataset and no
        augmentation.
      inputs: specs by name; the first dimension, the batch, is None.
      tables_of: lookup tables that the function reads, or modules and Keras models that hold them.

    Raises:
      ConfigError: if TensorFlow would change the name of an input.
    """

    function: "Callable[..., Mapping[str, tf.Tensor]]"
    inputs: "Mapping[str, tf.TensorSpec]"
    tables_of: "Sequence[tf.Module]" = ()

    def __post_init__(self) -> None:
        _check_names("inputs", [*self.inputs])

    def outputs(self) -> "dict[str, tf.TensorSpec]":
        """Traces the function, and returns the specs of its outputs by name.

        Raises:
          ConfigError: if it returns anything but tensors by name.
        """
        import tensorflow as tf

        def traced(**given: Any) -> "dict[str, tf.Tensor]":
            outputs = self.function(**given)
            if not isinstance(outputs, Mapping):
                raise ConfigError(
                    "expected the function of served() to return tensors by name, such as "
                    f"{{'y': y}}, got {type(outputs).__name__}; return a dictionary"
                )
            _check_names("outputs", [*outputs])
            return dict(outputs)

        function = tf.function(traced, autograph=False)
        found = function.get_concrete_function(**self.inputs).structured_outputs
        return {name: tf.TensorSpec(one.shape, one.dtype) for name, one in found.items()}


class Learner(abc.ABC):
    """Variables, and the functions that train and evaluate them. Subclass it.

    Attributes:
      num_steps: number of steps of the whole run.
      global_batch_size: number of examples in a batch, over all replicas.
    """

    num_steps: int
    global_batch_size: int

    @abc.abstractmethod
    def input_fn(self, context: "InputContext") -> "tf.data.Dataset | Callable[[], Any]":
        """Returns endless training data, in batches of the per-replica size.

        Every call must return the same data in the same order, so a shuffle needs a seed.
        Otherwise a resumed run would repeat some examples and skip others.

        Args:
          context: the input pipeline; its `per_replica_batch_size(self.global_batch_size)` is the
            batch size.

        Returns:
          A dataset, or a callable, which every replica calls as a part of its step; see
          `Replicator.make_inputs`.
        """

    def step_fn(self, batch: Any) -> "Mapping[str, tf.Tensor]":
        """Updates the variables from a batch, on one replica.

        Args:
          batch: a batch from `input_fn`.

        Returns:
          Metrics by name: scalars, each the mean over this replica's batch; {} for none. The
          progress line shows the first. A metric that is not finite stops the run.
        """
        raise NotImplementedError("expected step_fn or phases to be overridden, found neither")

    def phases(self) -> Sequence[Phase]:
        """Returns the step functions that make up a step, in order.

        Override it for several step functions. They share the input; each call uses a new batch.
        """
        return [Phase("", self.step_fn)]

    @abc.abstractmethod
    def trackables(self) -> dict[str, Any]:
        """Returns the models, optimizers and variables of a checkpoint, by name.

        A learner whose steps assign any other variable is refused. Only the states of metrics,
        which have SUM aggregation, may be missing.
        """

    def evaluation(self) -> Evaluation | None:
        """Returns the evaluation to run during training; None for no evaluation."""
        return None

    def served(self) -> Served | None:
        """Returns the function that `rl-replicator export` writes; None if there is none."""
        return None

    def images(self, step: int) -> "Mapping[str, np.ndarray]":
        """Returns images to write after an evaluation, as PNG files and for TensorBoard.

        Called only in the chief process, so it must not use collectives.

        Args:
          step: number of steps taken.

        Returns:
          Images by name, [height, width, 1 or 3] uint8. Each name, of letters, digits, "_", "-" and
          ".", becomes a folder in the run directory.
        """
        del step
        return {}

    def input_fn_from(
        self, context: "InputContext", batches: int
    ) -> "tf.data.Dataset | Callable[[], Any]":
        """Returns the training data of a resumed run: `input_fn` after the first batches.

        Reads and drops the first batches of a dataset. Override it if your data can skip them
        faster. A callable is not called for them, because it is a part of the step: the variables
        that determine its batch, such as the seed of its next random numbers, belong in
        `trackables()`, and are restored.

        Args:
          context: see `input_fn`.
          batches: number of global batches to skip.

        Returns:
          See `input_fn`.
        """
        data: Any = self.input_fn(context)
        if batches and hasattr(data, "skip"):
            return data.skip(batches * context.num_replicas // context.num_input_pipelines)
        return data
