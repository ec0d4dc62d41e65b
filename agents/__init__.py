"""Agents: actors, replay and learners, and the program that connects them.

The directory of a run is enough for its policy:

    policy = agents.load_policy("runs/d4pg/cartpole-swingup-seed1-1")
"""

import importlib
from typing import Any

_LAZY = {"Policy": "agents.policies.policy", "load_policy": "agents.policies.policy"}

__all__ = ["Policy", "load_policy"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'agents' has no attribute {name!r}")
