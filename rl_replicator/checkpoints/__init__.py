"""Checkpoints that are complete or absent, made of parts that save and restore themselves."""

from rl_replicator.checkpoints.checkpointer import Checkpointer, Part
from rl_replicator.checkpoints.manifest import CheckpointInfo

__all__ = ["CheckpointInfo", "Checkpointer", "Part"]
