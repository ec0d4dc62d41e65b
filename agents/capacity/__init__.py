"""Predicts the speed of a run on other hardware from a measurement of its parts."""
