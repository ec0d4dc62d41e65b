"""Supervised and generative learners: their contract, their training loop, and two networks.

    from rl_replicator import learners

    class Regression(learners.Learner): ...

    make_learner = learners.from_keras(model_fn, data_fn)

`docs/learners.md` develops one from a script to two replicas.
"""

import importlib
from typing import TYPE_CHECKING, Any

from rl_replicator.learners.contract import Evaluation, Learner, Phase, Reference, Served

if TYPE_CHECKING:
    from rl_replicator.learners.keras_models import KerasConfig, from_keras

__all__ = ["Evaluation", "KerasConfig", "Learner", "Phase", "Reference", "Served", "from_keras"]


def __getattr__(name: str) -> Any:
    if name in ("KerasConfig", "from_keras"):  # They import TensorFlow.
        return getattr(importlib.import_module("rl_replicator.learners.keras_models"), name)
    raise AttributeError(f"module 'rl_replicator.learners' has no attribute {name!r}")
