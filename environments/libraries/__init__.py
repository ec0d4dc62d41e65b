"""Environments of other libraries by name: Gymnasium's, and more of dm_control's."""
