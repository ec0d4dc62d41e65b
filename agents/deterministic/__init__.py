"""Runs that end with the same weights, whether interrupted or not: actor and learner take turns."""
