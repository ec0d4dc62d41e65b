"""Observations made of rendered frames."""
