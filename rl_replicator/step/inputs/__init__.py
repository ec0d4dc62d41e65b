"""The inputs of a replicated step: one element for every replica in every step."""

from rl_replicator.step.inputs.contract import (
    CANCELLED,
    ELEMENT,
    END,
    FAILED,
    InputContext,
    InputFn,
    Inputs,
)
from rl_replicator.step.inputs.datasets import DatasetInputs, PaddedInputs, pad, padded_spec
from rl_replicator.step.inputs.sources import (
    CallableInputs,
    call_input_fn,
    make,
    refuse_constants,
)

__all__ = [
    "CANCELLED",
    "ELEMENT",
    "END",
    "FAILED",
    "CallableInputs",
    "DatasetInputs",
    "InputContext",
    "InputFn",
    "Inputs",
    "PaddedInputs",
    "call_input_fn",
    "make",
    "pad",
    "padded_spec",
    "refuse_constants",
]
