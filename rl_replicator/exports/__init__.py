"""Models for other programs: a function with its weights, written so that it runs without us."""
