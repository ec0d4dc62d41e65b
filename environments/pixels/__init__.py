"""Environments whose observations are rendered frames."""
