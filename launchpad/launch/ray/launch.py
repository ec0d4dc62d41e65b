"""The engine that runs every node as an actor of Ray.

Ray places the nodes, ships code to them, watches them, carries their output, and ends them. The
nodes talk over their own servers, and are told what to do over control channels of their own: calls
of Ray actors are slower, and do not run in the main thread beside a running method.
"""

from __future__ import annotations

import os

from launchpad.launch import engine
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor
from launchpad.launch.ray import cluster as lp_cluster
from launchpad.launch.ray import control, placement


class RayEngine:
    """Makes actors."""

    def __init__(self, launch: engine.Launch):
        """Connects to Ray, and refuses what will never fit there."""
        self._launch = launch
        self._nodes = engine.dump_nodes(launch)
        self._cluster = lp_cluster.acquire(launch.cluster_address)
        try:
            self._is_own = self._cluster.address is None
            self._machines = placement.place(
                launch.members, placement.machines(), can_grow=not self._is_own
            )
            self._switchboard = control.Switchboard(self._cluster.host, launch.info.token)
        except BaseException:
            lp_cluster.release(self._cluster)
            raise

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        from launchpad.launch.ray import worker  # Imports Ray, whose settings are made by now.

        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        environment = self._environment(member)
        seen: dict[str, str | None] = {}
        # Ray sets it to the number of CPUs, at least 1, where the environment leaves it open.
        if "OMP_NUM_THREADS" not in environment:
            seen["OMP_NUM_THREADS"] = None
        if self._is_own:
            seen["PYTHONPATH"] = os.environ.get("PYTHONPATH")
            environment["PYTHONPATH"] = engine.search_path()
        return worker.RayWorker(
            member,
            supervisor,
            spec,
            self._switchboard,
            environment,
            seen,
            self._machines.get(member.name),
        )

    def close(self) -> None:
        self._switchboard.close()
        lp_cluster.release(self._cluster)

    def _environment(self, member: lp_member.Member) -> dict[str, str]:
        config = member.launch_config
        environment = config.environment()
        if not config.gpus:
            environment.setdefault("CUDA_VISIBLE_DEVICES", "")  # Else Ray leaves all visible.
        if "OMP_NUM_THREADS" in os.environ:
            environment.setdefault("OMP_NUM_THREADS", os.environ["OMP_NUM_THREADS"])
        return environment
