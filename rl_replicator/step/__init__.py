"""The compiled step, its inputs, and evaluation over finite data."""
