"""Suites: runs of several tasks and seeds, as processes, and what came of them."""
