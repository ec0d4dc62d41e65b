"""Processes on this machine: their start, output, ports, restarts and end.

`rl_replicator.jobs` and `launchpad` build on this package. It uses only the standard library.
"""
