"""Models for other programs: a function with its weights, which runs without this package."""
