"""Wrappers for any environment: a user's own, and a time limit."""
