"""Synchronous workers: several processes that take every step together, by collectives."""
