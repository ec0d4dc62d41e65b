"""A learner that trains on a replay table: any module with a `step_fn`, replicated."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, Protocol

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.learning.weights import LEARNER_STEPS, collect_variables, names_with_variables, select
from agents.networks.encoders import update_statistics
from agents.replay.priorities import Priorities
from agents.replay.transitions import Sample
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.errors import ConfigError
from rl_replicator.graphs import assignments
from rl_replicator.layers import precision

# The learner's own metric, in addition to those of the step.
_DROPPED_BATCHES = "dropped_priority_batches"
_SECONDS_BETWEEN_POLLS = 0.1


class StepOutput(NamedTuple):
    """What one learner step returns on each replica.

    Attributes:
      keys: [B] uint64 keys of the batch's items; () if items have no priorities, as in a queue.
      priorities: [B] float32 their new priorities, () without keys; unused if the table samples
        uniformly.
      metrics: scalars by name; they are averaged over steps and replicas.
    """

    keys: Any
    priorities: Any
    metrics: dict[str, tf.Tensor]


class _CallOutput(NamedTuple):
    """What the compiled step returns: `StepOutput` with all metrics in one tensor.

    Attributes:
      keys: see `StepOutput`.
      priorities: see `StepOutput`.
      metrics: [M] float32. A separate array for each of them takes 2 to 4 % of a small step.
    """

    keys: Any
    priorities: Any
    metrics: tf.Tensor


class StepModule(Protocol):
    """The part that an agent implements: variables, and one step written for a single device.

    It is a `tf.Module`, so that a checkpoint finds its variables.

    Attributes:
      num_steps: learner steps done, an int64 scalar; `step_fn` increments it.
      acting_networks: networks that actors and evaluators need, by the names that they request.
    """

    num_steps: tf.Variable
    acting_networks: Mapping[str, snt.Module]

    @property
    def trainable_variables(self) -> Sequence[tf.Variable]:
        """The variables that gradients train, as of any `tf.Module`."""
        ...

    def step_fn(self, sample: Sample) -> StepOutput:
        """Trains on one batch of this replica.

        If no Python control flow in it depends on tensors, as in the agents here, decorate it with
        `tf.autograph.experimental.do_not_convert`: otherwise AutoGraph spends three seconds looking
        for it.
        """
        ...


class ReplayLearner:
    """Runs a module's step, replicated, on batches of a replay table.

    After each call of some steps it writes the new priorities back to the table and copies the
    weights for the actors, so that no actor gets weights in the middle of an update. It implements
    `agents.agent.AgentLearner`.

    Attributes:
      network_names: networks that `get_variables` serves.
      seconds: time spent on priorities and on publishing the weights, by name.
    """

    def __init__(
        self,
        module: StepModule,
        replicator: rr.Replicator,
        input_fn: Callable[[Any], tf.data.Dataset],
        priorities: Priorities | None,
        steps_per_call: int,
        dtype: tf.DType = tf.float32,
    ):
        """Connects module, input and table, and compiles the step.

        Args:
          module: made inside `replicator.scope()`.
          replicator: runs the step.
          input_fn: `InputContext` -> dataset of `Sample`s.
          priorities: writes the new priorities; None if the table samples uniformly.
          steps_per_call: learner steps in one compiled call.
          dtype: the dtype in which the step's layers compute, see `precision.autocast`.

        Raises:
          ConfigError: if the step assigns a variable that `module` does not track, does not change
            its `num_steps`, or does not return a `StepOutput` with one priority for each key, and
            scalars by name as metrics.
        """
        self._module = module
        self._dtype = dtype
        self._replicator = replicator
        self.network_names = names_with_variables(module.acting_networks)
        self._published = collect_variables(module.acting_networks, self.network_names)
        self._metric_names: tuple[str, ...] = ()  # Known once the step is traced.
        self._inputs = replicator.make_inputs(input_fn, per_replica=True)
        self._step = replicator.replicate(self._step_fn, self._inputs, steps_per_call)
        # A restored run would lose what the module does not track, such as networks in a dataclass.
        saved = TrackablePart(**self.trackables())
        assigned = self._step.assigned_variables()
        saved.check_holds(assigned, type(module).__name__)
        _check_counts(module.num_steps, assigned)
        self._priorities = priorities
        self._num_steps = int(module.num_steps.numpy())
        self._steps_per_call = steps_per_call
        self._metrics: Any = None
        self.seconds = {"priorities": 0.0, "publish": 0.0}
        self._lock = threading.Lock()
        self._weights = self._copy_weights()

    def step(self, poll: Callable[[], None] | None = None) -> None:
        """Runs one compiled call; blocks until the table has enough items.

        Args:
          poll: called every tenth of a second while the call runs or waits; it may `cancel`.

        Raises:
          rl_replicator.StepCancelled: if `cancel` was called while it waited.
        """
        call = self._step.begin()
        try:
            while poll is not None and not futures.wait([call], _SECONDS_BETWEEN_POLLS).done:
                poll()
        except BaseException:
            self.cancel()  # Nobody will wait for the call.
            raise
        outputs = call.result()
        started = time.perf_counter()
        if self._priorities is not None:
            local = self._replicator.local_results(outputs)
            self._priorities.write([(output.keys, output.priorities) for output in local])
        self._num_steps += self._steps_per_call
        written = time.perf_counter()
        weights = self._copy_weights()
        self.seconds["priorities"] += written - started
        self.seconds["publish"] += time.perf_counter() - written
        with self._lock:
            self._metrics = outputs.metrics
            self._weights = weights

    def cancel(self) -> None:
        """Makes a `step` that waits for input raise `rl_replicator.StepCancelled`."""
        self._step.cancel()

    @property
    def num_steps(self) -> int:
        """Learner steps done since the beginning of training."""
        return self._num_steps

    def starved(self) -> bool:
        """Returns whether a `step` would have to wait for its input now."""
        return self._inputs.num_ready() == 0

    def metrics(self) -> dict[str, float]:
        """Returns the last call's metrics, averaged over its steps and this process's replicas."""
        with self._lock:
            metrics = self._metrics
        if metrics is None:
            return {}
        replicas = np.stack(self._replicator.local_results(metrics))  # [replicas, steps, M]
        means = replicas.mean(axis=(0, 1)).tolist()
        figures = dict(zip(self._metric_names, means, strict=True))
        if self._priorities is not None:
            figures[_DROPPED_BATCHES] = float(self._priorities.num_dropped_batches)
        return figures

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Returns the weights after the last call, by path.

        Args:
          names: networks among `network_names`, `LEARNER_STEPS` for the learner steps of the
            weights, or `EVERYTHING` for both.

        Raises:
          KeyError: if there is no such network.
        """
        with self._lock:
            weights = self._weights
        return select(weights, names)

    def trackables(self) -> dict[str, Any]:
        """Returns everything that a checkpoint must hold, by name."""
        return {"module": self._module}

    def refresh(self) -> None:
        """Reads the variables again after a restore or a cancelled call."""
        self._num_steps = int(self._module.num_steps.numpy())
        weights = self._copy_weights()
        with self._lock:
            self._weights = weights

    def close(self) -> None:
        """Writes the last priorities; ends the threads of priorities and input."""
        if self._priorities is not None:
            self._priorities.close()
        self._inputs.close()

    def _step_fn(self, sample: Sample) -> _CallOutput:
        """Adds the batch to the statistics of the observations, and trains on it."""
        networks = self._module.acting_networks.values()
        batch = sample.transition
        # Windows hold copies in front of an episode and after it.
        update_statistics(networks, batch.observation, getattr(batch, "valid", None))
        with precision.autocast(self._dtype):
            output = self._module.step_fn(sample)
        metrics = _metrics_of(output)
        _check_priorities(output)
        self._metric_names = tuple(metrics)
        packed = tf.stack(list(metrics.values())) if metrics else tf.zeros([0])
        return _CallOutput(output.keys, output.priorities, packed)

    def _copy_weights(self) -> dict[str, np.ndarray]:
        """Copies the weights, together with the number of steps that produced them."""
        weights = {path: variable.numpy() for path, variable in self._published.items()}
        return {**weights, f"{LEARNER_STEPS}/count": np.array(self._num_steps)}


@tf.autograph.experimental.do_not_convert
def _metrics_of(output: Any) -> dict[str, tf.Tensor]:
    """Returns the metrics of a step as float32 scalars.

    Args:
      output: what a module's `step_fn` returned.

    Raises:
      ConfigError: if it is not a `StepOutput`, or its metrics are not scalars by name, or have a
        reserved name.
    """
    if not isinstance(output, StepOutput):
        raise ConfigError(
            "expected step_fn to return StepOutput(keys, priorities, metrics), got "
            f"{type(output).__name__}; import it from agents.learning.replay_learner"
        )
    try:
        metrics = {name: tf.cast(value, tf.float32) for name, value in output.metrics.items()}
        wrong: Any = {name: tuple(x.shape) for name, x in metrics.items() if x.shape.rank}
    except (AttributeError, TypeError, ValueError):
        wrong = repr(output.metrics)
    if wrong:
        raise ConfigError(
            "expected step_fn to return metrics that are scalars by name, such as {'loss': loss}, "
            f"got {wrong}; return a dictionary of means over the batch"
        )
    if _DROPPED_BATCHES in metrics:
        raise ConfigError(
            f"expected metrics with other names than {_DROPPED_BATCHES}, which every learner with "
            "priorities has, got one of this name; rename it"
        )
    return metrics


@tf.autograph.experimental.do_not_convert
def _check_priorities(output: StepOutput) -> None:
    """Checks that a step returned one priority for each key.

    Raises:
      ConfigError: if the shapes differ. The table would reject them only later, in another thread.
    """
    if isinstance(output.keys, tuple) and isinstance(output.priorities, tuple):
        return
    keys = output.keys.shape
    found = getattr(output.priorities, "shape", None)
    if found is None or found.rank != keys.rank or not keys.is_compatible_with(found):
        raise ConfigError(
            f"expected step_fn to return priorities of the shape of the keys, {keys}, got "
            f"{found}; return sample.keys, and one priority for each transition"
        )


def _check_counts(num_steps: tf.Variable, assigned: Sequence[tf.Variable]) -> None:
    """Checks that the step changes its counter.

    Args:
      num_steps: the counter.
      assigned: the variables that the step assigns.

    Raises:
      ConfigError: if it does not. Whatever depends on the counter would be the same in all steps.
    """
    counter = assignments.handle_ids(num_steps)
    if all(counter.isdisjoint(assignments.handle_ids(variable)) for variable in assigned):
        raise ConfigError(
            "expected step_fn to increment num_steps, which it does not change; call "
            "self.num_steps.assign_add(1) in it"
        )
