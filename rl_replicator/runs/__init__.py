"""A run of anything that is trained: its directory, its metrics, its progress line, its plots."""
