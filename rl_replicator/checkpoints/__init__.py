"""Checkpoints that are complete or absent, made of parts that save and restore themselves."""

from rl_replicator.checkpoints.checkpointer import Checkpointer, CheckpointInfo, Part

__all__ = ["CheckpointInfo", "Checkpointer", "Part"]
