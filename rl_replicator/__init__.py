"""Write a training step once; run it on one device or on many.

    import rl_replicator as rr

    replicator = rr.make("multi_device:2")          # or "single_device"
    with replicator.scope():                        # every variable of the step is created here
        model = ...
        optimizer = replicator.wrap_optimizer(snt.optimizers.Adam(1e-3))
    inputs = replicator.make_inputs(input_fn)       # input_fn(rr.InputContext) -> Dataset | callable
    step = replicator.replicate(step_fn, inputs, steps_per_call=10)
    outputs = step()                                # leaves have shape [10, ...], one per replica
    replicator.reduce("mean", outputs["loss"])      # NumPy [10]
    replicator.gather(outputs["priorities"])        # NumPy [num_replicas, 10, B]
    step.cancel()                                   # from any thread: one call raises StepCancelled

Inside `step_fn`, replicas talk through `rr.collectives` only. `rr.checkpoints.Checkpointer` saves
and restores, `rr.metrics.MetricWriter` writes curves. Errors a user can act on are `rr.UsageError`.

Importing this package does not import TensorFlow; the first use of a name that needs it does.
"""

import importlib
from typing import Any

from rl_replicator.errors import (
    CheckpointError,
    ConfigError,
    EndOfData,
    StepCancelled,
    UsageError,
)

_LAZY = {
    "InputContext": "inputs",
    "Inputs": "inputs",
    "MultiDeviceReplicator": "multi_device",
    "PerReplica": "replicator",
    "Replicator": "replicator",
    "ReplicatedStep": "step",
    "SingleDeviceReplicator": "replicator",
    "make": "backends",
    "split_cpu": "devices",
}
_MODULES = ("checkpoints", "collectives", "metrics", "optimizers")

__all__ = [  # noqa: PLE0604 - the lazy names exist through __getattr__
    "CheckpointError",
    "ConfigError",
    "EndOfData",
    "StepCancelled",
    "UsageError",
    *_LAZY,
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"rl_replicator.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"rl_replicator.{name}")
    raise AttributeError(f"module 'rl_replicator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
