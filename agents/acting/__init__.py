"""Policies that act: actors, exploration, and stacks of frames."""
