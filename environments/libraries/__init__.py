"""Environments of libraries by name: Gymnasium's, and dm_control's outside its suite."""
