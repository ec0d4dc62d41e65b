"""Supervised and generative learners: their contract, their training loop, and two networks.

    from rl_replicator import learners

    class Regression(learners.Learner): ...

`docs/learners.md` develops one from a script to two replicas.
"""

from rl_replicator.learners.contract import Evaluation, Learner, Phase, Served

__all__ = ["Evaluation", "Learner", "Phase", "Served"]
