"""The compiled calls of which a learner's steps consist."""

import dataclasses
from concurrent import futures
from typing import Any

from rl_replicator import collectives, errors
from rl_replicator.learners.learner import Learner, Phase
from rl_replicator.replicator import Replicator
from rl_replicator.step.compiled import ReplicatedStep


@dataclasses.dataclass(frozen=True)
class Call:
    """A compiled call that was begun: `count` batches for one phase.

    Attributes:
      phase: whose step function runs.
      batch: how many batches were used before it, since the start of the run.
      count: how many it uses.
      future: of its outputs, means over all replicas, with a leading axis [count].
    """

    phase: Phase
    batch: int
    count: int
    future: "futures.Future[Any]"


class Calls:
    """All phases of a learner on their common input, compiled.

    How many batches have been used since the start of the run says which call is next. So a run
    can stop, and go on, between any two batches: also in the midst of a step of several phases.
    """

    def __init__(
        self, replicator: Replicator, learner: Learner, batches_before: int, steps_per_call: int
    ):
        """Compiles what an uninterrupted run needs.

        Args:
          replicator: runs the calls.
          learner: gives phases and data.
          batches_before: used by the run that this one continues.
          steps_per_call: steps in one call, for a learner with a single phase. With several, a
            call holds the `times` of one phase.

        Raises:
          ConfigError: no phase, one without a positive `times`, or two of the same name.
        """
        self._replicator = replicator
        self._phases = tuple(learner.phases())
        _check(self._phases)
        self._steps_per_call = steps_per_call if len(self._phases) == 1 else 1
        self.batches_per_step = sum(phase.times for phase in self._phases)
        self._before = batches_before
        self.inputs = replicator.make_inputs(
            lambda context: learner.input_fn_from(context, batches_before)
        )
        self._is_broken = False
        self._compiled: dict[tuple[str, int], ReplicatedStep] = {}
        for phase in self._phases:
            self._step(phase, phase.times * self._steps_per_call)

    @property
    def batches(self) -> int:
        """Batches used since the start of the run; current while calls run, too."""
        return self._before + self.inputs.position

    def begin(self, batch: int, end: int) -> Call:
        """Begins the call that follows after `batch` batches, one that does not go beyond `end`.

        Args:
          batch: used by all calls before this one, also those that still run.
          end: a whole number of steps, beyond `batch`.
        """
        phase, count = self._choose(batch, end)
        step = self._step(phase, count)
        return Call(
            phase, batch, count, self._replicator.background.submit(lambda: self._run(step))
        )

    def cancel(self) -> None:
        """Makes the call that runs, or the next, raise `StepCancelled`. Any thread may call.

        So do all that come after it: whatever was to follow must not take its place.
        """
        self.inputs.cancel()

    def _run(self, step: ReplicatedStep) -> Any:
        if self._is_broken:
            raise errors.StepCancelled("the call before it was cancelled")
        try:
            return step()
        except BaseException:
            self._is_broken = True
            raise

    def _choose(self, batch: int, end: int) -> tuple[Phase, int]:
        offset = batch % self.batches_per_step
        for phase in self._phases:
            if offset < phase.times:
                break
            offset -= phase.times
        if offset:  # Somebody stopped in the midst of this phase.
            return phase, 1
        whole = phase.times * self._steps_per_call
        return phase, whole if batch + whole <= end else phase.times

    def _step(self, phase: Phase, count: int) -> ReplicatedStep:
        if (phase.name, count) not in self._compiled:
            # Reduced in the step, because a reduction on the host would make the devices wait.
            self._compiled[phase.name, count] = self._replicator.replicate(
                lambda batch: collectives.all_mean(phase.step_fn(batch)),
                self.inputs,
                steps_per_call=count,
            )
        return self._compiled[phase.name, count]


def _check(phases: tuple[Phase, ...]) -> None:
    if not phases or len({phase.name for phase in phases}) < len(phases):
        raise errors.ConfigError(
            "expected phases with a name for each, got "
            f"{[phase.name for phase in phases]}; name them apart"
        )
    for phase in phases:
        if phase.times < 1:
            raise errors.ConfigError(
                f"expected phase {phase.name!r} to run at least once in a step, got "
                f"{phase.times} times; leave it out if it is not wanted"
            )
