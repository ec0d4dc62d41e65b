"""Experiments of many runs, over Ray Tune: searches for settings, and grids of tasks and seeds."""
