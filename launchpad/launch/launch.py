"""`lp.launch`: runs a program on one of the engines."""

from __future__ import annotations

import dataclasses
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launchpad import address_book as lp_address_book
from launchpad import context
from launchpad import flags as lp_flags
from launchpad import program as lp_program
from launchpad import runtime as lp_runtime
from launchpad.launch import manager as lp_manager
from launchpad.launch import member as lp_member
from launchpad.launch import supervisor as lp_supervisor
from launchpad.launch.local_multi_processing import launch as processes
from launchpad.launch.local_multi_threading import launch as threads
from launchpad.nodes import base
from launchpad.nodes.multi_processing_colocation import node as multi_processing_colocation
from launchpad.rpc import wire

_LOOPBACK = "127.0.0.1"

MakeWorker = Callable[[lp_member.Member, lp_supervisor.Supervisor], lp_member.Worker]


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch, as an engine sees it.

    Attributes:
      members: The nodes.
      info: What all nodes share.
      book: The addresses.
      terminal: The `terminal` argument of `launch`.
    """

    members: Sequence[lp_member.Member]
    info: lp_runtime.ProgramInfo
    book: lp_address_book.AddressBook
    terminal: str | None


def _threads(launch: Launch) -> MakeWorker:
    def make(member: lp_member.Member, supervisor: lp_supervisor.Supervisor):
        return threads.ThreadWorker(member, supervisor, launch.info, launch.book)

    return make


def _processes(launch: Launch) -> MakeWorker:
    # Pickled here, so that an error is raised by launch() and nothing has been started yet.
    nodes = {m.name: processes.pickle_node(m.node, m.label, m.index) for m in launch.members}

    def make(member: lp_member.Member, supervisor: lp_supervisor.Supervisor):
        node = nodes[member.name]
        return processes.ProcessWorker(member, supervisor, launch.info, launch.book, node)

    return make


# How each launch type makes the workers of a launch. New engines go here.
LAUNCHERS: dict[context.LaunchType, Callable[[Launch], MakeWorker]] = {
    context.LaunchType.LOCAL_MULTI_THREADING: _threads,
    context.LaunchType.TEST_MULTI_THREADING: _threads,
    context.LaunchType.LOCAL_MULTI_PROCESSING: _processes,
    context.LaunchType.TEST_MULTI_PROCESSING: _processes,
}

_TEST_TYPES = (
    context.LaunchType.TEST_MULTI_THREADING,
    context.LaunchType.TEST_MULTI_PROCESSING,
)


def launch(
    programs: lp_program.Program | Sequence[lp_program.Program],
    launch_type: context.LaunchType | str | None = None,
    xm_resources: Any = None,
    local_resources: Mapping[str, Any] | None = None,
    test_case: Any = None,
    terminal: str | None = None,
    *,
    termination_notice_secs: float | None = None,
    restart_policies: Mapping[str, base.RestartPolicy] | None = None,
) -> lp_manager.ProgramManager:
    """Starts a program and returns its manager at once.

    A script that ends after `launch` waits for the program first; `manager.wait()` does so
    explicitly. With the local types, Ctrl-C and SIGTERM stop the program in order.

    Args:
      programs: The program; of several, upstream's rule holds: only the first is launched.
      launch_type: How to run it; None for the flag `--lp_launch_type`.
      xm_resources: Ignored; upstream's cluster resources.
      local_resources: Label -> launch configuration, such as `lp.PythonProcess(env=...)`.
      test_case: A unittest.TestCase at whose end the program is stopped.
      terminal: Accepted for upstream's sake; output always goes to this terminal.
      termination_notice_secs: Seconds from the request to stop until nodes are killed; 0 kills at
        once, a negative number never; None for the flag `--lp_termination_notice_secs`.
      restart_policies: Label -> what to do when a node of that group fails, for nodes without a
        `restart_policy` of their own; by default a failure ends the program.

    Raises:
      ValueError: no nodes, an unknown or unsupported launch type, or resources for no group.
      TypeError: a node does not pickle.
    """
    del xm_resources
    program = _first(programs)
    launch_type = _launch_type(launch_type)
    launch_ = _describe(program, launch_type, dict(local_resources or {}), terminal)
    _apply(restart_policies or {}, program, launch_)
    make_worker = LAUNCHERS[launch_type](launch_)
    if termination_notice_secs is None:
        termination_notice_secs = lp_flags.termination_notice_secs()
    supervisor = lp_supervisor.Supervisor(
        launch_.members, make_worker, launch_.book, termination_notice_secs
    )
    supervisor.launcher = _launcher_runtime(launch_, supervisor)
    is_test = launch_type in _TEST_TYPES
    manager = lp_manager.ProgramManager(supervisor, is_test)
    if test_case is not None:
        test_case.addCleanup(manager.stop_and_wait)
    if not is_test:
        manager.take_signals()
    lp_manager.await_at_exit(manager)
    supervisor.start()
    return manager


def _first(programs: lp_program.Program | Sequence[lp_program.Program]) -> lp_program.Program:
    if isinstance(programs, lp_program.Program):
        return programs
    if len(programs) > 1:
        lp_runtime.logger.warning("%d programs given; only the first is launched", len(programs))
    return programs[0]


def _launch_type(launch_type: context.LaunchType | str | None) -> context.LaunchType:
    if launch_type is None:
        lp_flags.parse_if_needed()
        launch_type = lp_flags.LAUNCH_TYPE.value
    found = context.LaunchType(launch_type)
    if found not in LAUNCHERS:
        known = ", ".join(t.value for t in LAUNCHERS)
        raise ValueError(f"launch type {found.value!r} is not supported here; use one of: {known}")
    return found


def _describe(
    program: lp_program.Program,
    launch_type: context.LaunchType,
    resources: dict[str, Any],
    terminal: str | None,
) -> Launch:
    unknown = sorted(set(resources) - set(program.groups))
    if unknown:
        raise ValueError(
            f"local_resources names {unknown}, but the groups are {sorted(program.groups)}"
        )
    members = [
        lp_member.Member(label, index, node, resources.get(label))
        for label, nodes in program.groups.items()
        for index, node in enumerate(_flatten(nodes))
    ]
    if not members:
        raise ValueError(f"program {program.name!r} has no nodes")
    info = lp_runtime.ProgramInfo(
        program_id=uuid.uuid4().hex,
        token=secrets.token_bytes(wire.TOKEN_BYTES),
        launch_type=launch_type,
        host=_LOOPBACK,
        owners={a.key: m.name for m in members for a in m.node.addresses},
    )
    return Launch(members, info, lp_address_book.AddressBook(), terminal)


def _apply(
    policies: Mapping[str, base.RestartPolicy], program: lp_program.Program, launch_: Launch
) -> None:
    unknown = sorted(set(policies) - set(program.groups))
    if unknown:
        raise ValueError(
            f"restart_policies names {unknown}, but the groups are {sorted(program.groups)}"
        )
    for member in launch_.members:
        member.restart_policy = member.node.restart_policy or policies.get(member.label)


def _flatten(nodes: Sequence[base.Node]) -> list[base.Node]:
    """Replaces nodes that only say where others are placed by those others."""
    flat: list[base.Node] = []
    for node in nodes:
        if isinstance(node, multi_processing_colocation.MultiProcessingColocation):
            flat.extend(_flatten(node.nodes))
        else:
            flat.append(node)
    return flat


def _launcher_runtime(
    launch_: Launch, supervisor: lp_supervisor.Supervisor
) -> lp_runtime.NodeRuntime:
    """Makes the runtime through which this process takes part: handles, lp.stop()."""
    runtime = lp_runtime.NodeRuntime(
        "launcher",
        0,
        launch_.info,
        launch_.book,
        lp_runtime.Callbacks(
            publish=supervisor.post_publish,
            set_state=lambda state: None,
            request_stop=supervisor.post_stop,
            interrupt=lambda: None,
        ),
    )
    for member in launch_.members:
        for address in member.node.addresses:
            address.bind_to_launcher(runtime)
    lp_runtime.add_launcher_runtime(runtime)
    return runtime
