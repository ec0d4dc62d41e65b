"""Detects a learner whose weights are NaN or infinite."""

from agents.agent import AgentLearner
from rl_replicator.checkpoints import Checkpointer, pending_work
from rl_replicator.checkpoints.parts import TrackablePart, VariableValues
from rl_replicator.errors import UsageError


class LearnerDiverged(UsageError):  # noqa: N818 - named like `rl_replicator.learners`' own
    """A variable of an agent's learner holds NaN or infinity."""


def finite_state(learner: AgentLearner, checkpointer: Checkpointer) -> VariableValues:
    """Copies all variables of a learner, for a checkpoint.

    Args:
      learner: the learner, between two steps.
      checkpointer: provides the newest checkpoint, from which the run could continue.

    Raises:
      LearnerDiverged: if a variable holds NaN or infinity. If it were saved, it would replace the
        checkpoints from which the run can still continue.
    """
    part = TrackablePart(**learner.trackables())
    with pending_work.paused(part.variables().values()):
        values = part.capture()
    bad = values.first_not_finite()
    if bad is None:
        return values
    latest = checkpointer.latest()
    saved = f"the newest checkpoint is of step {latest.step}" if latest else "no checkpoint yet"
    raise LearnerDiverged(
        f"expected finite numbers, got NaN or infinity in variable {bad!r} after learner step "
        f"{learner.num_steps}; lower the learning rates, or scale the rewards ({saved})"
    )
