"""The engine that runs every node as an actor of Ray.

Ray places the nodes, ships code to them, watches them, forwards their output, and ends them. The
nodes call each other through their own servers and are controlled over their own channels, because
calls of Ray actors are slower, and do not run in the main thread while a method runs there.

Ray itself is imported only where it is used: its settings are in place by then.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import random
import signal
import time
from typing import Any

from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import engine, node_process, placement
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.engines.ray import cluster as lp_cluster
from launchpad.engines.ray import control
from rl_replicator.processes import ports, process_group

_WAIT_MESSAGE_SECS = 10.0
# Ray has this long to tell the death of a node whose connection has ended, in seconds.
_TOLD_SECS = 2.0


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
            self._lost: set[str] = set()
        except BaseException:
            lp_cluster.release(self._cluster)
            raise

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        """Returns a new incarnation of a node, not started yet."""
        config = member.launch_config
        told = config.environment()
        # Ray leaves all GPUs visible to a node that asked for none, and sets the number of threads
        # to that of the CPUs reserved for the node, at least 1.
        variables = {"OMP_NUM_THREADS": self._launch.environment.get("OMP_NUM_THREADS")}
        if not config.gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ""
        spec = engine.make_spec(
            self._launch,
            member,
            self._nodes[member.name],
            {name: value for name, value in variables.items() if name not in told},
            self._launch.search_path_of(config) if self._is_own else [],
        )
        machine = self._machines.get(member.name)
        return RayWorker(
            member,
            supervisor,
            spec,
            self._switchboard,
            machine,
            None if self._is_own else self._lost,
        )

    def close(self) -> None:
        """Disconnects from Ray, and ends it if it is the program's own."""
        self._switchboard.close()
        lp_cluster.release(self._cluster)


class NodeActor:
    """Hosts one node: Ray starts it in a process of its own, and runs it in the main thread."""

    def __init__(self, name: str):
        self._name = name

    def __repr__(self) -> str:
        return self._name  # Ray prefixes every line that the node prints with it.

    def run(self, spec: node_process.NodeSpec, launcher: str, key: bytes, is_local: bool) -> int:
        """Runs the node to its end.

        Args:
          spec: The node.
          launcher: Address of the launcher's switchboard.
          key: Identifies this node to the switchboard.
          is_local: True if all nodes run on the launcher's machine, so that its loopback interface
            is enough.

        Returns:
          The exit status that a process would have.

        Raises:
          ConnectionError: the launcher can't be reached.
        """
        atexit._clear()  # Ray's handlers would close the connection on which this call returns.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))  # Ray's daemons block it.
        spec.enter()
        import ray

        machine = ray.get_runtime_context().get_node_id()
        channel = control.call(launcher, spec.info.secret, key, machine)
        if not is_local:
            info = dataclasses.replace(spec.info, host=ray.util.get_node_ip_address())
            spec = dataclasses.replace(spec, info=info)
        status = node_process.Child(channel, spec).run()
        node_process.run_exit_handlers()
        return status


class RayWorker(lp_channel.RemoteWorker):
    """A node in a Ray actor's process.

    Attributes:
      pid: Its process id on its machine; None before it has connected.
    """

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        spec: node_process.NodeSpec,
        switchboard: control.Switchboard,
        machine: str | None,
        lost: set[str] | None,
    ):
        """Prepares the worker; `start()` starts the node.

        Args:
          member: The node.
          supervisor: Receives the node's events.
          spec: What its process needs.
          switchboard: Accepts the connection of its process.
          machine: Ray's id of the machine that it should run on; None to spread the nodes.
          lost: Ray's ids of the machines that fell silent, on which no node is started again; None
            if all nodes run on this machine.
        """
        super().__init__(member, supervisor)
        self.pid: int | None = None
        self._spec = spec
        self._switchboard = switchboard
        self._config = member.launch_config
        self._machine = machine
        self._runs_on = ""
        self._lost = lost
        self._is_local = lost is None
        self._actor: Any = None
        self._was_called_off = False

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has stopped the process, if it is one of this machine."""
        return self._is_local and self.pid is not None and process_group.is_stopped(self.pid)

    def start(self) -> None:
        """Asks Ray for a process, which connects to the launcher once it runs."""
        import ray

        board = self._switchboard
        try:
            self._actor = ray.remote(NodeActor).options(**self._options()).remote(self.name)
            # Ray gives the process this title.
            end = self._actor.run.options(name=self.name).remote(
                self._spec, board.address, board.expect(self._on_call), self._is_local
            )
        except Exception as error:
            self.report_end(errors.ExceptionRecord.of(error))
            return
        self._thread(self._await_end, "wait", end)

    def _options(self) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy: Any = "SPREAD"
        if self._machine is not None and self._machine not in (self._lost or ()):
            # Soft: when that machine has died, a restart elsewhere is better than none.
            strategy = NodeAffinitySchedulingStrategy(self._machine, soft=True)
        options: dict[str, Any] = {
            "num_cpus": self._config.cpus,
            "num_gpus": self._config.gpus or 0.0,
            "max_restarts": 0,  # The supervisor restarts nodes, with their backoff.
            "scheduling_strategy": strategy,
        }
        if self._lost:
            # Ray itself takes a minute to find out that a machine is lost, and places nodes there,
            # or passes those on to it that ask for nothing. Each machine has this resource.
            left = [each.host for each in placement.machines() if each.key not in self._lost]
            options["resources"] = {f"node:{random.choice(left)}": 0.001} if left else {}
        if environment := self._config.environment():
            # Even an empty one makes Ray start another interpreter.
            options["runtime_env"] = {"env_vars": environment}
        return options

    def notify_stop(self) -> None:
        """Asks the node to leave its `run()`; cancels it if Ray has not started it yet."""
        super().notify_stop()
        if not self.is_attached:  # It has not run a line of the node's code yet.
            self._was_called_off = True
            self.kill()

    def kill(self) -> None:
        """Makes Ray kill the process."""
        import ray

        with contextlib.suppress(Exception):  # The process or Ray is gone already.
            ray.kill(self._actor, no_restart=True)

    def _kill_frozen(self) -> None:
        if self._is_local and self.pid is not None:
            with contextlib.suppress(OSError):  # Ray's kill asks the process, which is frozen.
                os.kill(self.pid, signal.SIGKILL)
        super()._kill_frozen()

    def _on_call(self, channel: lp_channel.Channel, pid: int, machine: str) -> None:
        self.pid, self._runs_on = pid, machine
        self.attach(channel)

    def _read(self) -> None:
        super()._read()
        if self._lost is not None:
            self._thread(self._end_lost, "lost", self._lost)

    def _end_lost(self, lost: set[str]) -> None:
        """Gives up a node whose connection was lost, unless Ray soon tells that it died."""
        time.sleep(_TOLD_SECS)
        if not self._has_ended:
            lost.add(self._runs_on)
            self.kill()
            text = (
                f"its machine was silent for {ports.SILENCE_SECONDS:g} s (it gets nodes again once "
                "Ray on it is started anew)"
            )
            self.report_end(errors.ExceptionRecord(errors.PROCESS_DIED, text, ""))

    def _await_end(self, end: Any) -> None:
        import ray

        death = None
        try:
            while not ray.wait([end], timeout=_WAIT_MESSAGE_SECS)[0]:
                if not self.is_attached:
                    self._tell_waiting(ray.available_resources())
            if status := ray.get(end):  # What the node has reported takes precedence.
                death = lp_channel.death(status)
        except Exception as error:
            death = _death(error)
        self.kill()  # Skips the interpreter's teardown: the node's exit handlers have run.
        self.report_end(None if self._was_called_off else death)

    def _tell_waiting(self, free: dict[str, float]) -> None:
        lp_supervisor.logger.warning(
            "%s: waiting for Ray to start it on %g CPUs and %g GPUs; free are %g and %g",
            self.name,
            self._config.cpus,
            self._config.gpus or 0.0,
            free.get("CPU", 0.0),
            free.get("GPU", 0.0),
        )


def _death(error: Exception) -> errors.ExceptionRecord:
    """Describes the end of a process that did not end normally."""
    from ray import exceptions

    detail = str(error)
    if isinstance(error, exceptions.RayActorError):
        if "because its node has died" in detail:
            died = errors.PROCESS_DIED
            return errors.ExceptionRecord(died, "its machine has left the cluster", "")
        detail = detail.rpartition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    elif not isinstance(
        error,
        exceptions.OutOfMemoryError  # Ray kills a process because its machine is short of memory.
        | exceptions.NodeDiedError
        | exceptions.WorkerCrashedError
        | exceptions.LocalRayletDiedError,
    ):
        return errors.ExceptionRecord.of(error)
    text = " ".join(detail.split())
    return errors.ExceptionRecord(errors.PROCESS_DIED, f"Ray says: {text}", "")
