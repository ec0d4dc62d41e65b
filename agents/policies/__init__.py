"""Trained policies: loaded from a run's directory to act, and exported for other programs."""
