"""Agents: what acts, what remembers, what learns, and the program that joins them."""
