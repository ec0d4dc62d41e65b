"""The contract of a learner: what `rl-replicator train module:make_learner` asks of your module.

    def make_learner(replicator: rr.Replicator, config: Config) -> Learner

`Config` is a frozen dataclass; its fields become options. The learner creates its variables in
`replicator.scope()` and wraps its optimizers with `replicator.wrap_optimizer`. The loop does the
rest: replicas, checkpoints, metrics, progress, evaluation, resume.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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
      name: goes before the names of its metrics: `discriminator_loss`.
      step_fn: see `Learner.step_fn`.
      times: how often it runs in one step of the learner, each time with a batch of its own.
    """

    name: str
    step_fn: StepFn
    times: int = 1


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Sums over finite data, in which every example counts once, and the figures made of them.

    Attributes:
      input_fn: `InputContext` -> finite dataset of batches of at most the per-replica size; the
        last may be short. `context.shard` gives every process its part.
      sums_fn: (batch, mask) -> sums over the batch, by name. The mask, [per-replica batch]
        float32, is 1 for an example and 0 for filling.
      metrics_fn: the sums over all examples (NumPy, float64 or int64) -> figures, by name.
      global_batch_size: over all replicas.
      every: steps from one evaluation to the next; the last step is always followed by one.
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
    """Variables, and what is done with them. Subclass it.

    Attributes:
      num_steps: after how many steps the run is complete.
      global_batch_size: examples of one batch, over all replicas.
    """

    num_steps: int
    global_batch_size: int

    @abc.abstractmethod
    def input_fn(self, context: "InputContext") -> "tf.data.Dataset | Callable[[], Any]":
        """Training data without end, as batches of
        `context.per_replica_batch_size(self.global_batch_size)`; see `Replicator.make_inputs`.

        The same data in the same order whenever it is called (a shuffle needs a seed), or else a
        resumed run does not go on with what the interrupted one had left.
        """

    def step_fn(self, batch: Any) -> "Mapping[str, tf.Tensor]":
        """One update from a batch, on one replica.

        Returns:
          Metrics by name: scalars, each the mean over this replica's batch. The first is shown
          while training. One that is not finite stops the run.
        """
        raise NotImplementedError("write step_fn, or phases if there are several")

    def phases(self) -> Sequence[Phase]:
        """For several step functions: which a step consists of, in their order.

        They share the input, and each time that one runs it takes a batch of its own.
        """
        return [Phase("", self.step_fn)]

    @abc.abstractmethod
    def trackables(self) -> dict[str, Any]:
        """Everything that a checkpoint must hold, by name: models, optimizers, variables."""

    def evaluation(self) -> Evaluation | None:
        """What to measure now and then; None for nothing."""
        return None

    def write_artifacts(self, step: int, directory: Path) -> None:  # noqa: B027 - optional
        """Called after each evaluation, in the chief process only: pictures and the like.

        Without collectives, for the other processes are not there.

        Args:
          step: of the learner.
          directory: of the run.
        """

    def input_fn_from(
        self, context: "InputContext", batches: int
    ) -> "tf.data.Dataset | Callable[[], Any]":
        """The training data of a resumed run: what follows the first `batches` global batches.

        Reads and drops what comes before. Override it where that takes long.
        """
        data: Any = self.input_fn(context)
        if batches and hasattr(data, "skip"):
            return data.skip(batches * context.num_replicas // context.num_input_pipelines)
        return data
