"""Learners that need no environment: the contract, the loop that trains them, and two networks.

    from rl_replicator import learners

    class Regression(learners.Learner): ...

`docs/learners.md` shows one from its first line to two replicas.
"""

from rl_replicator.learners.learner import Evaluation, Learner, Phase

__all__ = ["Evaluation", "Learner", "Phase"]
