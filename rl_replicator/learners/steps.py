"""The compiled steps of a learner: its phases, and the input that they share."""

import dataclasses
from collections.abc import Mapping
from concurrent import futures
from typing import Any

import tensorflow as tf

from rl_replicator import collectives, errors
from rl_replicator.graphs import leaves
from rl_replicator.learners.contract import Learner, Phase
from rl_replicator.replicator import Replicator
from rl_replicator.step.compiled import ReplicatedStep


@dataclasses.dataclass(frozen=True)
class PhaseCall:
    """A compiled call that has begun: `count` batches for one phase.

    Attributes:
      phase: the phase whose step function runs.
      batch: number of batches that the run used before the call.
      count: number of batches that the call uses.
      future: future of the outputs: means over all replicas, with a leading axis [count].
    """

    phase: Phase
    batch: int
    count: int
    future: "futures.Future[Any]"


class Steps:
    """Runs the phases of a learner in compiled calls.

    The number of batches that the run has used determines the next call. So a run can stop and
    continue between any two batches, even in the middle of a step of several phases.
    """

    def __init__(
        self, replicator: Replicator, learner: Learner, batches_before: int, steps_per_call: int
    ):
        """Compiles the calls of an uninterrupted run.

        Args:
          replicator: runs the calls.
          learner: provides phases and data.
          batches_before: number of batches that the run used before it was interrupted.
          steps_per_call: number of steps in a call, for a learner with a single phase. With several
            phases, a call runs one phase `times` times.

        Raises:
          ConfigError: if there is no phase, if the `times` of a phase is not positive, if two have
            the same name, or if the data has batches of the wrong size.
        """
        self._replicator = replicator
        self._phases = tuple(learner.phases())
        _check(self._phases)
        self._steps_per_call = steps_per_call if len(self._phases) == 1 else 1
        self.batches_per_step = sum(phase.times for phase in self._phases)
        self._before = batches_before
        self._wrong_size = ""
        self.inputs = replicator.make_inputs(lambda context: self._input(learner, context))
        self._is_broken = False
        self._compiled: dict[tuple[str, int], ReplicatedStep] = {}
        for phase in self._phases:
            self._step(phase, phase.times * self._steps_per_call)

    @property
    def batches(self) -> int:
        """Number of batches that the run has used; up to date while calls run."""
        return self._before + self.inputs.position

    def assigned_variables(self) -> list[tf.Variable]:
        """Returns the variables that the steps of all phases assign."""
        found = {
            id(variable): variable
            for step in self._compiled.values()
            for variable in step.assigned_variables()
        }
        return list(found.values())

    def begin(self, batch: int, end: int) -> PhaseCall:
        """Begins the call that follows `batch` batches and does not go beyond `end`.

        Args:
          batch: number of batches of all earlier calls, including those that still run.
          end: number of batches, more than `batch`, that make up whole steps.

        Returns:
          The call.
        """
        phase, count = self._choose(batch, end)
        step = self._step(phase, count)
        future = self._replicator.begin(lambda: self._run(step), step.cancel)
        return PhaseCall(phase, batch, count, future)

    def cancel(self) -> None:
        """Makes the current or the next call raise `StepCancelled`. Thread-safe.

        All later calls raise it too, so that none of them runs out of order.
        """
        self.inputs.cancel()

    def _run(self, step: ReplicatedStep) -> Any:
        if self._is_broken:
            raise errors.StepCancelled("the call before it was cancelled")
        try:
            return step()
        except BaseException as error:
            self._is_broken = True
            is_wrong_size = self._wrong_size and self._wrong_size in str(error)
            if isinstance(error, tf.errors.InvalidArgumentError) and is_wrong_size:
                raise errors.ConfigError(self._wrong_size) from None
            raise

    def _choose(self, batch: int, end: int) -> tuple[Phase, int]:
        offset = batch % self.batches_per_step
        for phase in self._phases:
            if offset < phase.times:
                break
            offset -= phase.times
        if offset:  # The run was stopped in the middle of this phase.
            return phase, 1
        whole = phase.times * self._steps_per_call
        return phase, whole if batch + whole <= end else phase.times

    def _step(self, phase: Phase, count: int) -> ReplicatedStep:
        if (phase.name, count) not in self._compiled:

            def step_fn(batch: Any) -> Any:
                metrics = leaves.as_tensors(phase.step_fn(batch), "from step_fn")
                # Averaged here and not on the host, where the devices would have to wait for it.
                return collectives.all_mean(_scalars(metrics))

            self._compiled[phase.name, count] = self._replicator.replicate(
                step_fn, self.inputs, steps_per_call=count
            )
        return self._compiled[phase.name, count]

    def _input(self, learner: Learner, context: Any) -> Any:
        """Returns the data; the batches of a dataset are checked and have a static size."""
        source = learner.input_fn_from(context, self._before)
        if not isinstance(source, tf.data.Dataset):
            return source
        spec = source.element_spec
        first = tf.nest.flatten(spec)[0]
        if not isinstance(first, tf.TensorSpec) or not first.shape.rank:
            return source
        size = context.per_replica_batch_size(learner.global_batch_size)
        self._wrong_size = (
            f"expected input_fn to return batches of {size} examples ({context.num_replicas} "
            f"replicas share the global batch), got {first.shape[0] or 'another number'}; batch "
            "the data with context.per_replica_batch_size(self.global_batch_size)"
        )
        if first.shape[0] not in (None, size):
            raise errors.ConfigError(self._wrong_size)

        def checked(*element: Any) -> Any:
            flat = tf.nest.flatten(element)
            check = tf.debugging.assert_equal(tf.shape(flat[0])[0], size, self._wrong_size)
            with tf.control_dependencies([check]):
                flat[0] = tf.ensure_shape(tf.identity(flat[0]), [size, *first.shape[1:]])
            # `map` passes the components of a tuple one by one.
            return tf.nest.pack_sequence_as(spec, flat)

        return source if first.shape[0] else source.map(checked)


@tf.autograph.experimental.do_not_convert
def _scalars(metrics: Any) -> dict[str, tf.Tensor]:
    """Returns the metrics of a step; raises `ConfigError` unless they are real scalars by name."""
    if not isinstance(metrics, Mapping) or not all(map(_is_real_scalar, metrics.values())):
        raise errors.ConfigError(
            "expected step_fn to return real scalars by name, such as {'loss': loss}, got "
            f"{_kinds(metrics)}; return a dictionary of means over the batch"
        )
    return {name: tf.ensure_shape(x, []) for name, x in metrics.items()}


def _is_real_scalar(x: Any) -> bool:
    if not isinstance(x, tf.Tensor) or x.shape.rank not in (0, None):
        return False
    return x.dtype.is_floating or x.dtype.is_integer or x.dtype.is_bool


def _kinds(metrics: Any) -> str:
    if isinstance(metrics, Mapping):
        return ", ".join(f"{name}: {_kinds(value)}" for name, value in metrics.items())
    if isinstance(metrics, tf.Tensor):
        rank = metrics.shape.rank
        return f"{metrics.dtype.name} {'[...]' if rank is None else metrics.shape.as_list()}"
    return type(metrics).__name__


def _check(phases: tuple[Phase, ...]) -> None:
    if not phases or len({phase.name for phase in phases}) < len(phases):
        raise errors.ConfigError(
            "expected at least one phase, and a different name for each, got "
            f"{[phase.name for phase in phases]}; name the phases in phases()"
        )
    for phase in phases:
        remedy = "leave the phase out of phases() if you do not need it"
        errors.check_count(f"times of phase {phase.name!r}", phase.times, remedy)
