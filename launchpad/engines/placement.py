"""Placement of nodes: the CPUs and GPUs of this machine, and the machines of a Ray cluster."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Mapping, Sequence

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


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine of the cluster and its total resources.

    Attributes:
      key: Ray's id of the machine.
      host: Its IP address.
    """

    key: str
    host: str
    cpus: float
    gpus: float

    def has(self, cpus: float, gpus: float) -> bool:
        """Returns whether the machine has this much in total."""
        return cpus <= self.cpus and gpus <= self.gpus

    def __str__(self) -> str:
        return f"{self.host}: {self.cpus:g} CPUs, {self.gpus:g} GPUs"


def machines() -> list[Machine]:
    """Returns the machines of the cluster that this process is connected to."""
    import ray

    return [
        Machine(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def place(
    members: Sequence[lp_member.Member], cluster: Sequence[Machine], can_grow: bool
) -> Mapping[str, str]:
    """Checks that each node fits on some machine; chooses the machines of colocations.

    Args:
      members: The nodes.
      cluster: The machines.
      can_grow: False if no machines can be added to the cluster.

    Returns:
      Machine keys by node name, for the nodes that must share a machine.

    Raises:
      ValueError: a node or colocation fits nowhere, or all of them together do not fit.
    """
    for member in members:
        config = member.launch_config
        _fitting(f"node {member.name}", config.cpus, config.gpus or 0.0, cluster)
    if not can_grow:
        cpus = sum(m.cpus for m in cluster)
        gpus = sum(m.gpus for m in cluster)
        wanted = _demand(members)
        if wanted[0] > cpus or wanted[1] > gpus:
            raise ValueError(
                f"the program asks for {wanted[0]:g} CPUs and {wanted[1]:g} GPUs in all, and this "
                f"Ray has {cpus:g} and {gpus:g}: lower them in local_resources, or add machines"
            )
    chosen = {}
    keys = sorted({m.colocation for m in members if m.colocation is not None})
    for turn, key in enumerate(keys):
        together = [m for m in members if m.colocation == key]
        what = f"colocation {together[0].label}"
        fitting = _fitting(what, *_demand(together), cluster)
        machine = next(itertools.islice(itertools.cycle(fitting), turn, None))
        chosen.update({m.name: machine.key for m in together})
    return chosen


def _demand(members: Sequence[lp_member.Member]) -> tuple[float, float]:
    cpus = math.fsum(m.launch_config.cpus for m in members)
    return cpus, math.fsum(m.launch_config.gpus or 0.0 for m in members)


def _fitting(what: str, cpus: float, gpus: float, cluster: Sequence[Machine]) -> list[Machine]:
    found = [machine for machine in cluster if machine.has(cpus, gpus)]
    if not found:
        raise ValueError(
            f"{what} asks for {cpus:g} CPUs and {gpus:g} GPUs, and no machine of the cluster has "
            f"them ({'; '.join(map(str, cluster))}): lower local_resources, or add a machine"
        )
    return found
