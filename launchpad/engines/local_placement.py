"""Checks the CPUs and assigns the GPUs that processes of this machine ask for."""

from __future__ import annotations

import os
from collections.abc import Sequence

from launchpad.engines import member as lp_member
from rl_replicator.processes import gpus

# Tolerance for the free part of a GPU: sums and differences of decimal fractions are not exact.
_ROUNDING = 1e-6


def environments(members: Sequence[lp_member.Member]) -> dict[str, dict[str, str]]:
    """Returns the environment variables to set for each node, by name of the node.

    GPUs are assigned in order; nodes that ask for a part of a GPU share one.

    Raises:
      ValueError: one node needs more CPUs, or all nodes need more GPUs, than this machine has.
    """
    num_cpus = len(os.sched_getaffinity(0))
    visible = gpus.visible()
    free = dict.fromkeys(visible, 1.0)
    found = {}
    for member in members:
        config = member.launch_config
        if config.cpus > num_cpus:
            raise ValueError(
                f"node {member.name} asks for {config.cpus:g} CPUs, and this machine has "
                f"{num_cpus}: lower local_resources[{member.label!r}]"
            )
        given = _take(free, config.gpus)
        if given is None:
            raise ValueError(
                f"node {member.name} asks for {config.gpus:g} GPUs, and of the {len(visible)} of "
                f"this machine {round(sum(free.values()), 6):g} are left: lower "
                f"local_resources[{member.label!r}]"
            )
        environment = config.environment()
        if config.gpus is not None:
            environment.setdefault(gpus.VISIBLE, ",".join(given))
        found[member.name] = environment
    return found


def _take(free: dict[str, float], wanted: float | None) -> list[str] | None:
    """Takes `wanted` GPUs from `free`; returns None if too few are left."""
    if not wanted:
        return []
    share = min(wanted, 1.0)
    # Parts go to the devices with the least left, so that whole devices stay free.
    fitting = [
        name for name in sorted(free, key=free.__getitem__) if free[name] >= share - _ROUNDING
    ]
    if len(fitting) < wanted:
        return None
    taken = fitting[: max(1, int(wanted))]
    for name in taken:
        free[name] = max(0.0, free[name] - share)
    return taken
