"""The engine that runs every node as an actor of Ray.

Ray places the nodes, ships code to them, watches them, forwards their output, and ends them. The
nodes call each other through their own servers and are controlled over their own channels, because
calls of Ray actors are slower, and do not run in the main thread while a method runs there.
"""

from __future__ import annotations

from launchpad.engines import engine
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.engines.ray import cluster as lp_cluster
from launchpad.engines.ray import control, node_actor, placement


class RayEngine:
    """Runs nodes as actors of Ray."""

    def __init__(self, launch: engine.Launch):
        """Connects to Ray; raises an error if the program can never fit there."""
        self._launch = launch
        self._nodes = engine.dump_nodes(launch)
        self._cluster = lp_cluster.acquire(launch.cluster_address)
        try:
            self._is_own = self._cluster.address is None
            self._machines = placement.place(
                launch.members, placement.machines(), can_grow=not self._is_own
            )
            self._switchboard = control.Switchboard(self._cluster.host, launch.info.secret)
        except BaseException:
            lp_cluster.release(self._cluster)
            raise

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        """Returns a new incarnation of a node, not started yet."""
        from launchpad.engines.ray import worker  # Imports Ray, whose settings are in place by now.

        spec = engine.make_spec(self._launch, member, self._nodes[member.name])
        return worker.RayWorker(
            member,
            supervisor,
            spec,
            self._switchboard,
            self._surroundings(member),
            self._machines.get(member.name),
        )

    def close(self) -> None:
        """Disconnects from Ray, and ends it if it is the program's own."""
        self._switchboard.close()
        lp_cluster.release(self._cluster)

    def _surroundings(self, member: lp_member.Member) -> node_actor.Surroundings:
        config = member.launch_config
        told = config.environment()
        # Ray leaves all GPUs visible to a node that asked for none, and sets the number of threads
        # to that of the CPUs reserved for the node, at least 1.
        variables = {"OMP_NUM_THREADS": self._launch.environment.get("OMP_NUM_THREADS")}
        if not config.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        return node_actor.Surroundings(
            is_local=self._is_own,
            directory=self._launch.directory,
            search_path=self._launch.search_path_of(config) if self._is_own else [],
            environment={name: value for name, value in variables.items() if name not in told},
        )
