"""Suites: runs of several tasks and seeds, as processes, and their results."""
