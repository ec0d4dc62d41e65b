"""The interface of engines, and the description of a launch that they get."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Protocol

from launchpad import runtime as lp_runtime
from launchpad.engines import member as lp_member
from launchpad.engines import node_process, serialization
from launchpad.engines import supervisor as lp_supervisor
from launchpad.nodes import python


def search_path() -> list[str]:
    """Returns the directories from which this process imports, for use in a new process."""
    here = working_directory()
    # Python ignores entries that are not strings, such as path objects.
    return [entry or here for entry in sys.path if isinstance(entry, str)]


def start_python(
    words: Sequence[str],
    environment: Mapping[str, str],
    directories: Sequence[str],
    files: Sequence[int],
    interpreter: str = sys.executable,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Starts a Python interpreter in a session of its own.

    Args:
      words: Its arguments.
      environment: Its environment variables; PYTHONPATH is replaced.
      directories: Where it finds this package. PYTHONPATH can't contain directories with a colon in
        their names; `node_process.import_from` can.
      files: Descriptors that it inherits.
      interpreter: Path of the interpreter.
      stdout: As for `subprocess.Popen`.
      stderr: Likewise.
    """
    path = os.pathsep.join(name for name in directories if os.pathsep not in name)
    return subprocess.Popen(
        # -P: the working directory must not precede the launcher's search path.
        [interpreter, *subprocess._args_from_interpreter_flags(), "-P", *words],  # type: ignore[attr-defined]
        env={**environment, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=files,
        start_new_session=True,  # The terminal's Ctrl-C goes to the launcher alone.
    )


def working_directory() -> str:
    """Returns the working directory of this process; empty if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch, as an engine sees it.

    A node that is restarted later starts in the launcher's surroundings (directory,
    environment, ...) as they were at the launch, whatever the launcher has changed since.

    Attributes:
      members: The nodes.
      info: What all nodes share.
      book: The addresses published so far, by key.
      cluster_address: The `address` argument of `launch`; only for engines of clusters.
      directory: Working directory of the launcher; empty if it was removed.
      search_path: Directories from which the launcher imports.
      environment: Its environment variables.
      argv: Its command line.
      flags: Its absl flags; see `serialization.dump_flags`.
    """

    members: Sequence[lp_member.Member]
    info: lp_runtime.ProgramInfo
    book: dict[str, str]
    cluster_address: str | None
    directory: str = dataclasses.field(default_factory=working_directory)
    search_path: Sequence[str] = dataclasses.field(default_factory=search_path)
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(os.environ))
    argv: Sequence[str] = dataclasses.field(default_factory=lambda: list(sys.argv))
    flags: bytes = dataclasses.field(default_factory=serialization.dump_flags)

    def search_path_of(self, config: python.PythonProcess) -> list[str]:
        """Returns the directories from which a node imports: its group's own PYTHONPATH first."""
        own = config.environment().get("PYTHONPATH")
        entries = own.split(os.pathsep) if own else []
        directories = (os.path.join(self.directory, entry) for entry in entries)
        return [*map(os.path.normpath, directories), *self.search_path]


class Engine(Protocol):
    """Runs the nodes of one launch. The constructor raises an error if the launch is invalid."""

    def make_worker(
        self, member: lp_member.Member, supervisor: lp_supervisor.Supervisor
    ) -> lp_member.Worker:
        """Makes a new incarnation of a node, not started yet."""

    def close(self) -> None:
        """Releases the engine's resources; called once, when all nodes are gone."""


def dump_nodes(launch: Launch) -> dict[str, bytes]:
    """Pickles all nodes, by name.

    Raises:
      TypeError: one of them does not pickle.
    """
    return {m.name: serialization.dump_node(m.node, m.name) for m in launch.members}


def make_spec(
    launch: Launch,
    member: lp_member.Member,
    node: bytes,
    environment: Mapping[str, str | None],
    directories: Sequence[str],
) -> node_process.NodeSpec:
    """Describes a node for the process in which it starts now.

    Args:
      launch: Its launch.
      member: The node.
      node: The node, pickled.
      environment: Environment variables to set; None for one that must not be set.
      directories: Where Python looks for modules first.
    """
    return node_process.NodeSpec(
        label=member.label,
        index=member.index,
        info=launch.info,
        addresses=dict(launch.book),
        node=node,
        launch_config=member.launch_config,
        argv=launch.argv,
        flags=[launch.flags, serialization.dump_args(member.launch_config.args)],
        environment=environment,
        directory=launch.directory,
        search_path=directories,
    )
