"""Nodes that run a function, an object or a command, and how their processes are started."""

from __future__ import annotations

import dataclasses
import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from launchpad import runtime as lp_runtime
from launchpad.nodes import base, dereference

logger = logging.getLogger("launchpad")

HandleType = TypeVar("HandleType", bound=base.Handle)
ReturnType = TypeVar("ReturnType")
WorkerType = TypeVar("WorkerType")


class _NoHandle(base.Handle[Any]):
    """Handle of a node that serves nothing."""

    def dereference(self) -> Any:
        raise NotImplementedError("a PyNode serves nothing: its handle can't be used by a node")


class PyNode(base.Node[Any], Generic[HandleType, ReturnType]):
    """Runs `function(*args, **kwargs)` once. Handles among the arguments become clients."""

    def __init__(self, function: Callable[..., ReturnType], *args: Any, **kwargs: Any):
        super().__init__()
        self._function = function
        self._func_args = args
        self._func_kwargs = kwargs
        self._input_handles = base.extract_handles((args, kwargs))

    def create_handle(self) -> Any:
        """Returns a handle that no node can use: a function offers nothing to call."""
        return self._track_handle(_NoHandle())

    @property
    def function(self) -> Callable[[], ReturnType]:
        """The node as a callable without arguments, which a subclass may replace."""
        return self._call

    def execute(self) -> ReturnType:
        """Calls `function`."""
        return self.function()

    def _call(self) -> ReturnType:
        """Calls the function, with clients in place of the handles among its arguments."""
        args, kwargs = dereference.dereference_tree((self._func_args, self._func_kwargs))
        _set_state(lp_runtime.RUNNING)
        return self._function(*args, **kwargs)


class RunNode(PyNode[HandleType, None], Generic[HandleType]):
    """A node that does what its `run()` says, which subclasses may extend."""

    def __init__(self) -> None:
        super().__init__(self.run)

    def run(self) -> None:
        """Runs the node in the calling thread until it ends."""
        raise NotImplementedError

    def _call(self) -> None:
        """Calls `run()`."""
        self.run()


class PyClassNode(RunNode[HandleType], Generic[HandleType, WorkerType]):
    """Constructs an object in the node and calls its `run()`, if it has one."""

    def __init__(self, constructor: Callable[..., WorkerType], *args: Any, **kwargs: Any):
        super().__init__()
        self._constructor = constructor
        self._args = args
        self._kwargs = kwargs
        self._should_run = True
        self._collect_input_handles()

    def _collect_input_handles(self) -> None:
        self._input_handles = base.extract_handles((self._args, self._kwargs))

    def disable_run(self) -> None:
        """Makes the node construct the object without calling its `run()`."""
        self._should_run = False

    def enable_run(self) -> None:
        """Undoes `disable_run()`."""
        self._should_run = True

    def _construct_instance(self) -> WorkerType:
        """Constructs the object with its arguments dereferenced."""
        args, kwargs = dereference.dereference_tree((self._args, self._kwargs))
        return self._constructor(*args, **kwargs)

    def run_instance(self, instance: WorkerType) -> bool:
        """Calls `instance.run()`; returns False if there is none or it is disabled."""
        run = getattr(instance, "run", None) if self._should_run else None
        if run is None:
            return False
        _set_state(lp_runtime.RUNNING)
        run()
        return True

    def run(self) -> None:
        """Constructs the object and calls its `run()`, also in a test without a launch."""
        instance = self._construct_instance()
        if not self.run_instance(instance):
            logger.warning("%s has no run(), or it is disabled", type(instance).__name__)


class CommandNode(PyNode[base.Handle[Any], None]):
    """Runs a command in a process of its own, on this machine; it ends well with status 0.

    A stop of the program sends it SIGTERM. Its standard error goes where its standard output does.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        title: str,
        collateral_status: int | None = None,
        final_statuses: Collection[int] = (),
    ):
        """Describes the node.

        Args:
          command: The command and its arguments.
          environment: Environment variables to add to those of the launcher.
          title: Its name, in messages and before each line of its output.
          collateral_status: Exit status of a command that has lost another process.
          final_statuses: Exit statuses after which a restart would end in the same way.
        """
        super().__init__(self.execute)
        self.command = list(command)
        self.environment = dict(environment)
        self.title = title
        self.collateral_status = collateral_status
        self.final_statuses = frozenset(final_statuses)

    def execute(self) -> None:
        """Never called: the engine of processes runs the command itself."""
        raise NotImplementedError("a CommandNode is run by the launch type 'local_mp' only")


class ServingCommandNode(CommandNode):
    """A command that serves others until the program stops, and ends after them."""

    stops_last = True


def _set_state(state: str) -> None:
    # A test may also execute a node directly, outside a program.
    runtime = lp_runtime.current()
    if runtime is not None:
        runtime.set_state(state)


# Environment variables that numeric libraries read when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@dataclasses.dataclass(frozen=True)
class PythonProcess:
    """Launch configuration of one group: a value of `local_resources`.

    It applies to each node of the group. Threads share one process, so they ignore it.

    Attributes:
      args: absl flags for the processes of the group, over those of the launcher. Text is parsed as
        on a command line.
      env: Environment variables, set before anything is imported in the process.
      interpreter: Python executable; the launcher's if empty. Ray always uses its own.
      cpus: CPUs that Ray reserves for the node; processes only check that the machine has them.
      gpus: GPUs that the node sees, whole ones or a part of one; 0 hides all. None is 0 on Ray, and
        leaves the environment unchanged elsewhere.
      threads: Threads of a numeric library, such as OpenMP's or TensorFlow's pool; None for the
        library's default.
      fresh_interpreter: True to start a new Python interpreter for each node, which imports
        everything itself, instead of forking a process that has already done so.
    """

    args: Mapping[str, str | int | float | bool] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    interpreter: str = ""
    cpus: float = 0.0
    gpus: float | None = None
    threads: int | None = None
    fresh_interpreter: bool = False

    def __post_init__(self) -> None:
        gpus = self.gpus or 0.0
        if self.cpus < 0 or gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ValueError(
                f"cpus={self.cpus:g}, gpus={gpus:g}: expected cpus >= 0, and gpus a whole number "
                "or a part of one"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads={self.threads}: expected a positive number, or None")

    @property
    def absolute_interpreter_path(self) -> str:
        """Path of the Python interpreter of the nodes."""
        return self.interpreter or sys.executable

    def environment(self) -> dict[str, str]:
        """Returns `env` as text, after the variables that `threads` stands for."""
        threads = {} if self.threads is None else dict.fromkeys(THREAD_VARIABLES, self.threads)
        return {str(name): str(value) for name, value in {**threads, **self.env}.items()}
