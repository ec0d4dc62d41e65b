"""Write a training step once; run it on one device or on many.

    import rl_replicator as rr

    replicator = rr.make("multi_device:2")          # or "single_device"
    with replicator.scope():                        # every variable of the step is created here
        model = ...
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(1e-3))
    inputs = replicator.make_inputs(input_fn)       # (rr.InputContext) -> Dataset | callable
    step = replicator.replicate(step_fn, inputs, steps_per_call=10)
    outputs = step()                                # leaves have shape [10, ...], one per replica
    replicator.reduce("mean", outputs["loss"])      # NumPy [10]
    replicator.gather(outputs["priorities"])        # NumPy [num_replicas, 10, B]
    step.cancel()                                   # from any thread: one call raises StepCancelled

    replicator.build_optimizer(optimizer, params)   # its slots, now: needed before a restore

Inside `step_fn`, replicas talk through `rr.collectives` only.

    from rl_replicator import checkpoints, metrics, parts

    checkpointer = checkpoints.Checkpointer(directory, keep=2)
    state = {"learner": parts.TrackablePart(model=model, optimizer=optimizer),
             "counters": parts.JsonPart(get, set)}   # or any object with save and restore(folder)
    if checkpointer.latest(): checkpointer.restore(state)
    checkpointer.save(step_number, state)
    writer = metrics.MetricWriter(run_dir, resume_step=None)
    writer.write("learner", environment_steps, {"loss": 0.1})

Errors that a user can act on are `rr.UsageError`, one line each.

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
    WorkerLost,
)

_LAZY = {
    "CrossReplicaBatchNorm": "normalization",
    "Cluster": "jobs.cluster",
    "InputContext": "inputs",
    "Inputs": "inputs",
    "MeshReplicator": "mesh.replicator",
    "MultiDeviceReplicator": "multi_device",
    "MultiWorkerAsyncReplicator": "asynchronous.replicator",
    "MultiWorkerReplicator": "multi_worker.replicator",
    "PerReplica": "replicator",
    "Replicator": "replicator",
    "ReplicatedStep": "step",
    "SingleDeviceReplicator": "replicator",
    "TpuReplicator": "tpu",
    "make": "backends",
    "split_cpu": "devices",
}
_MODULES = (
    "checkpoints",
    "collectives",
    "metrics",
    "micro_batches",
    "normalization",
    "optimizers",
    "parts",
)

__all__ = [
    "CheckpointError",
    "ConfigError",
    "EndOfData",
    "StepCancelled",
    "UsageError",
    "WorkerLost",
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
