"""The contract of a learner: what `rl-replicator train module:make_learner` asks of your module.

    def make_learner(replicator: rr.Replicator, config: Config) -> Learner

`Config` is a frozen dataclass with a default for each field; its fields become options. The learner
creates its variables in `replicator.scope()` and wraps its optimizers with
`replicator.wrap_optimizer`. The training loop does the rest: replicas, checkpoints, metrics,
progress, evaluation, resume.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

    from rl_replicator.step.inputs import InputContext, InputFn

StepFn = Callable[[Any], "Mapping[str, tf.Tensor]"]


@dataclasses.dataclass(frozen=True)
class Phase:
    """One of several step functions that together make a step of the learner.

    Attributes:
      name: prefix of the names of its metrics: `discriminator_loss`.
      step_fn: see `Learner.step_fn`.
      times: how often it runs in one step of the learner, each time with a new batch.
    """

    name: str
    step_fn: StepFn
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Sums over finite data, in which every example counts once, and figures computed from them.

    Attributes:
      input_fn: `InputContext` -> finite dataset of batches of at most the per-replica size; the
        last may be short. `context.shard` gives every process its part.
      sums_fn: (batch, mask) -> sums over the batch, by name. The mask, [per-replica batch]
        float32, is 1 for an example and 0 for padding.
      metrics_fn: the sums over all examples (NumPy, float64 or int64) -> figures, by name. The
        first is the one that `rl-replicator plot` draws.
      global_batch_size: over all replicas.
      every: steps from one evaluation to the next. The last step is always followed by one.
      best: the figure by which the best checkpoint is chosen: "accuracy" for the highest, "-loss"
        for the lowest.
    """

    input_fn: "InputFn"
    sums_fn: "Callable[[Any, tf.Tensor], Mapping[str, tf.Tensor]]"
    metrics_fn: "Callable[[Mapping[str, np.ndarray]], Mapping[str, float]]"
    global_batch_size: int
    every: int
    best: str


class Learner(abc.ABC):
    """Variables, and the functions that train and evaluate them. Subclass it.

    Attributes:
      num_steps: after how many steps the run is complete.
      global_batch_size: examples in one batch, over all replicas.
    """

    num_steps: int
    global_batch_size: int

    @abc.abstractmethod
    def input_fn(self, context: "InputContext") -> "tf.data.Dataset | Callable[[], Any]":
        """Returns endless training data, in batches of the per-replica size.

        It must return the same data in the same order whenever it is called (a shuffle needs a
        seed); otherwise a resumed run does not continue with the data that was left.

        Args:
          context: `context.per_replica_batch_size(self.global_batch_size)` is the batch size.

        Returns:
          What `Replicator.make_inputs` accepts.
        """

    def step_fn(self, batch: Any) -> "Mapping[str, tf.Tensor]":
        """Updates the variables from a batch, on one replica.

        Args:
          batch: an element of what `input_fn` returned.

        Returns:
          Metrics by name: scalars, each the mean over this replica's batch. The progress line shows
          the first. One that is not finite stops the run.
        """
        raise NotImplementedError("write step_fn, or phases if there are several")

    def phases(self) -> Sequence[Phase]:
        """Returns the step functions of which one step consists, in their order.

        Override it if there are several. They share the input; each call takes a new batch.
        """
        return [Phase("", self.step_fn)]

    @abc.abstractmethod
    def trackables(self) -> dict[str, Any]:
        """Returns what a checkpoint must hold, by name: models, optimizers, variables."""

    def evaluation(self) -> Evaluation | None:
        """Returns what to measure during training; None for nothing."""
        return None

    def images(self, step: int) -> "Mapping[str, np.ndarray]":
        """Returns images to keep after an evaluation; they are written for people and TensorBoard.

        Called in the chief process only, so it must not use collectives.

        Args:
          step: steps done.

        Returns:
          [height, width, 1 or 3] uint8 by name; the name becomes a folder of the run's directory.
        """
        del step
        return {}

    def input_fn_from(
        self, context: "InputContext", batches: int
    ) -> "tf.data.Dataset | Callable[[], Any]":
        """Returns the training data of a resumed run: what follows the first global batches.

        Reads and drops what comes before. Override it if that takes long.

        Args:
          context: as for `input_fn`.
          batches: how many global batches to leave out.

        Returns:
          As `input_fn`.
        """
        data: Any = self.input_fn(context)
        if batches and hasattr(data, "skip"):
            return data.skip(batches * context.num_replicas // context.num_input_pipelines)
        return data
