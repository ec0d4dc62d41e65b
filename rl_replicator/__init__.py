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

    replicator.build_optimizer(optimizer, params)   # creates its slots, which a restore requires

Inside `step_fn`, replicas communicate only through `rr.collectives`.

    checkpointer = rr.checkpoints.Checkpointer(directory, keep=2)
    state = {"learner": rr.parts.TrackablePart(model=model, optimizer=optimizer),
             "counters": rr.parts.JsonPart(get, set)}  # or any object with save and restore(folder)
    if checkpointer.latest(): checkpointer.restore(state)
    checkpointer.save(step_number, state)
    writer = rr.metrics.MetricWriter(run_dir, x_axis="steps")
    writer.write("train", step_number, {"loss": 0.1})

Errors that a user can act on are instances of `rr.UsageError`, with a one-line message.

Importing this package does not import TensorFlow; the first use of a name that needs it does.
"""

import importlib
from typing import Any

from rl_replicator.errors import (
    CheckpointError,
    ConfigError,
    DiskError,
    EndOfData,
    ReplicasDiffer,
    StepCancelled,
    StepFailed,
    UsageError,
    WorkerLost,
)

_LAZY = {
    "CrossReplicaBatchNorm": "layers.batch_norm",
    "Cluster": "jobs.cluster",
    "InputContext": "step.inputs.contract",
    "Inputs": "step.inputs.contract",
    "MeshReplicator": "backends.mesh.replicator",
    "MultiDeviceReplicator": "backends.multi_device",
    "MultiWorkerAsyncReplicator": "backends.parameter_server.replicator",
    "MultiWorkerReplicator": "backends.multi_worker.replicator",
    "PerReplica": "step.results",
    "Replicator": "replicator",
    "ReplicatedStep": "step.compiled",
    "SingleDeviceReplicator": "backends.single_device",
    "TpuReplicator": "backends.tpu",
    "VectorQuantizerEMA": "layers.vector_quantizer",
    "make": "backends.make",
    "split_cpu": "backends.devices",
    "train": "cli.train",
}
_MODULES = {
    "checkpoints": "checkpoints",
    "collectives": "collectives",
    "metrics": "runs.metrics",
    "micro_batches": "optimizers.micro_batches",
    "normalization": "layers.batch_norm",
    "optimizers": "optimizers",
    "parts": "checkpoints.parts",
    "randomness": "collectives.randomness",
}

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DiskError",
    "EndOfData",
    "ReplicasDiffer",
    "StepCancelled",
    "StepFailed",
    "UsageError",
    "WorkerLost",
    *_LAZY,
    *_MODULES,
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"rl_replicator.{_LAZY[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"rl_replicator.{_MODULES[name]}")
    raise AttributeError(f"module 'rl_replicator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
