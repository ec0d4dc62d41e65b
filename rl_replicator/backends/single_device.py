"""A replicator with one replica on one device."""

import functools
import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends import devices
from rl_replicator.step import compiled, host
from rl_replicator.step.inputs import contract

_XLA = "xla"
# TensorFlow's messages about an operation that XLA cannot compile: the usual message, and that of a
# process that has used a mesh, where TensorFlow uses another compiler.
_UNSUPPORTED = re.compile(
    r"(?:unsupported operations when trying to compile .*?: |Could not legalize op: tf\.)(\w+)"
)
# TensorFlow's messages about inputs and outputs of a step that are not numbers, in the same two
# cases.
_NO_NUMBER = re.compile(r"trying to compile .*?: _(?:Arg|Retval)\b|in DataTypeToPrimitiveType: ")


class SingleDeviceReplicator(replicator.Replicator):
    """One replica on the default device, without the overhead of a distribution strategy."""

    def __init__(self, jit_compile: bool = False) -> None:
        """Uses the first GPU if there is one, and otherwise the CPU.

        Args:
          jit_compile: whether XLA compiles each step into one kernel. A callable input is a part of
            the step; datasets are not compiled. A step with an operation that XLA does not support
            raises `ConfigError` when it is called. Assertions and `tf.debugging.check_numerics`
            have no effect in a compiled step, and neither do seeds of stateful random ops: for
            reproducible numbers, use `tf.random.stateless_*` or a `tf.random.Generator`.
            Evaluations are not compiled by XLA, so that they may use tensors of dynamic shapes.
        """
        devices.grow_gpu_memory()
        self._step_class = _CompiledStep if jit_compile else compiled.ReplicatedStep
        super().__init__(_CompilingHost() if jit_compile else _DeviceHost())

    @classmethod
    def from_text(cls, argument: str) -> "SingleDeviceReplicator":
        """Accepts "xla", to compile the steps, or no argument; see `Replicator.from_text`."""
        if argument not in ("", _XLA):
            raise errors.ConfigError(
                f"expected single_device or single_device:{_XLA}, got single_device:{argument}; "
                "correct it, or use multi_device"
            )
        return cls(jit_compile=argument == _XLA)

    @functools.cached_property
    def strategy(self) -> tf.distribute.Strategy:
        """A `OneDeviceStrategy` on the same device; see `Replicator.strategy`."""
        # Estimators do not accept the default strategy.
        return tf.distribute.OneDeviceStrategy("/gpu:0" if devices.gpus() else "/cpu:0")

    def _make_step(self, *arguments: Any) -> compiled.ReplicatedStep:
        return self._step_class(self._host, *arguments)

    def _make_evaluation_step(
        self, step_fn: Callable[[Any], Any], inputs: contract.Inputs
    ) -> compiled.ReplicatedStep:
        return compiled.ReplicatedStep(self._host, step_fn, inputs, None)


class _CompiledStep(compiled.ReplicatedStep):
    """A step that XLA compiles."""

    jit_compile = True


class _DeviceHost(host.LocalHost):
    """A single replica on the first GPU, or on the CPU."""

    @property
    def input_devices(self) -> tuple[str, ...]:
        return devices.gpus()[:1]


class _CompilingHost(_DeviceHost):
    """A single replica whose steps XLA compiles."""

    def failure(self, error: Exception) -> Exception:
        if _NO_NUMBER.search(str(error)):
            return errors.ConfigError(
                "expected numbers as elements and outputs of a step that XLA compiles, got strings "
                "or other types; leave them out of both, or use single_device"
            )
        found = _UNSUPPORTED.search(str(error))
        if found is None:
            return error
        return errors.ConfigError(
            f"expected a step of operations that XLA compiles, got {found[1]}; move it to "
            "a tf.data.Dataset that input_fn returns, or use single_device"
        )
