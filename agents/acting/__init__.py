"""Actors, exploration, and stacks of frames."""
