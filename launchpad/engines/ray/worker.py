"""A node of the Ray engine, as the supervisor sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from launchpad import errors
from launchpad.engines import channel as lp_channel
from launchpad.engines import child, remote_worker
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.engines.ray import control, node_actor

_WAIT_MESSAGE_SECS = 10.0
# What Ray raises, besides RayActorError, for a process that it has lost or killed.
_LOST_PROCESS = (
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.LocalRayletDiedError,
)


class RayWorker(remote_worker.RemoteWorker):
    """A node in a Ray actor's process.

    Attributes:
      pid: Its process id on its machine; None before it has connected.
    """

    def __init__(
        self,
        member: lp_member.Member,
        supervisor: lp_supervisor.Supervisor,
        spec: child.NodeSpec,
        switchboard: control.Switchboard,
        surroundings: node_actor.Surroundings,
        machine: str | None,
    ):
        """Prepares the worker; `start()` starts the node.

        Args:
          member: The node.
          supervisor: Receives the node's events.
          spec: What its process needs.
          switchboard: Accepts the connection of its process.
          surroundings: Set in its process.
          machine: Ray's id of the machine that it should run on; None to spread the nodes.
        """
        super().__init__(member, supervisor)
        self.pid: int | None = None
        self._spec = spec
        self._switchboard = switchboard
        self._config = member.launch_config
        self._surroundings = surroundings
        self._machine = machine
        self._actor: Any = None
        self._was_called_off = False

    def start(self) -> None:
        """Asks Ray for a process, which connects to the launcher once it runs."""
        board = self._switchboard
        try:
            actor_class = ray.remote(node_actor.NodeActor).options(**self._options())
            self._actor = actor_class.remote(self.name)
            # Ray gives the process this title.
            end = self._actor.run.options(name=self.name).remote(
                self._spec, board.address, board.expect(self._on_call), self._surroundings
            )
        except Exception as error:
            self.report_end(errors.ExceptionRecord.of(error))
            return
        self._thread(self._await_end, "wait", end)

    def _options(self) -> dict[str, Any]:
        strategy: Any = "SPREAD"
        if self._machine is not None:
            # Soft: when that machine has died, a restart elsewhere is better than none.
            strategy = NodeAffinitySchedulingStrategy(self._machine, soft=True)
        options: dict[str, Any] = {
            "num_cpus": self._config.cpus,
            "num_gpus": self._config.gpus or 0.0,
            "max_restarts": 0,  # The supervisor restarts nodes, with their backoff.
            "scheduling_strategy": strategy,
        }
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
        with contextlib.suppress(Exception):  # The process or Ray is gone already.
            ray.kill(self._actor, no_restart=True)

    def _kill_frozen(self) -> None:
        if self._surroundings.is_local and self.pid is not None:
            with contextlib.suppress(OSError):  # Ray's kill asks the process, which is frozen.
                os.kill(self.pid, signal.SIGKILL)
        super()._kill_frozen()

    def _on_call(self, channel: lp_channel.Channel, pid: int) -> None:
        self.pid = pid
        self.attach(channel)

    def _await_end(self, end: Any) -> None:
        death = None
        try:
            while not ray.wait([end], timeout=_WAIT_MESSAGE_SECS)[0]:
                if not self.is_attached:
                    self._tell_waiting()
            if status := ray.get(end):  # What the node has reported takes precedence.
                death = remote_worker.death(status)
        except Exception as error:
            death = _death(error)
        self.kill()  # Skips the interpreter's teardown: the node's exit handlers have run.
        self.report_end(None if self._was_called_off else death)

    def _tell_waiting(self) -> None:
        free = ray.available_resources()
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
    if isinstance(error, _LOST_PROCESS):
        # For example, Ray kills a process because its machine is short of memory.
        detail = " ".join(str(error).split())
        return errors.ExceptionRecord(errors.PROCESS_DIED, f"Ray says: {detail}", "")
    if not isinstance(error, ray.exceptions.RayActorError):
        return errors.ExceptionRecord.of(error)
    if "because its node has died" in str(error):
        return errors.ExceptionRecord(errors.PROCESS_DIED, "its machine has left the cluster", "")
    detail = str(error).rpartition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    return errors.ExceptionRecord(errors.PROCESS_DIED, f"Ray says: {' '.join(detail.split())}", "")
