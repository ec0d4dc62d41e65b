"""Pickles of values that may belong to the main script."""
