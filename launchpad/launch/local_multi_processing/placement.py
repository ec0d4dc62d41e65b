"""What each process of this machine may use."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Sequence

from launchpad.launch import member as lp_member

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def environments(members: Sequence[lp_member.Member]) -> dict[str, dict[str, str]]:
    """Returns what is set in the environment of each node, by name.

    GPUs are handed out in order; a part of one is shared with other parts.

    Raises:
      ValueError: the nodes need more CPUs for one node, or more GPUs, than this machine has.
    """
    num_cpus = len(os.sched_getaffinity(0))
    gpus = visible_gpus()
    free = dict.fromkeys(gpus, 1.0)
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
                f"node {member.name} asks for {config.gpus:g} GPUs, and of the {len(gpus)} of this "
                f"machine {sum(free.values()):g} are left: lower local_resources[{member.label!r}]"
            )
        environment = config.environment()
        if config.gpus is not None:
            environment.setdefault(VISIBLE_GPUS, ",".join(given))
        found[member.name] = environment
    return found


def visible_gpus() -> list[str]:
    """Returns the names of the GPUs that this process may use."""
    told = os.environ.get(VISIBLE_GPUS)
    if told is not None:
        return [name for name in told.split(",") if name]
    devices = pathlib.Path("/dev").glob("nvidia[0-9]*")
    return sorted((d.name.removeprefix("nvidia") for d in devices), key=int)


def _take(free: dict[str, float], wanted: float | None) -> list[str] | None:
    """Takes `wanted` GPUs off `free`; None if they are not there."""
    if not wanted:
        return []
    share = min(wanted, 1.0)
    # Parts go where least is left, so that whole devices stay whole.
    fitting = [name for name in sorted(free, key=free.__getitem__) if free[name] >= share]
    if len(fitting) < wanted:
        return None
    taken = fitting[: max(1, int(wanted))]
    for name in taken:
        free[name] -= share
    return taken
