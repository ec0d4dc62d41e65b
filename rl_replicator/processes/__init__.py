"""Processes of this machine: their start, output, ports, restarts and end.

`rl_replicator.jobs` and `launchpad` stand on this package. It uses the standard library alone.
"""
