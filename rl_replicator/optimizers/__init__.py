"""Optimizers on fused kernels, and the processing of gradients before they are applied."""

from rl_replicator.optimizers.adam import Adam, AdamW
from rl_replicator.optimizers.momentum import LARS, Momentum

__all__ = ["LARS", "Adam", "AdamW", "Momentum"]
