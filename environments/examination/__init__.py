"""Finds what is wrong with an environment by playing it."""
