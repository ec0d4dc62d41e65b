"""`lp.launch`: runs a program on one of the engines."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from launchpad import program as lp_program
from launchpad import runtime as lp_runtime
from launchpad.engines import engine, processes, serialization, threads
from launchpad.engines import flags as lp_flags
from launchpad.engines import manager as lp_manager
from launchpad.engines import member as lp_member
from launchpad.engines import supervisor as lp_supervisor
from launchpad.engines.ray import engine as ray
from launchpad.nodes import base, colocation, python, reverb
from launchpad.rpc import tls
from launchpad.runtime import LaunchType
from rl_replicator.processes import ports

_TERMINALS = (
    *("current_terminal", "output_to_files", "gnome-terminal", "gnome-terminal-tabs", "xterm"),
    *("tmux_session", "byobu_session"),
)


# Makes the engine of a launch, by launch type. New engines go here.
LAUNCHERS: dict[LaunchType, Callable[[engine.Launch], engine.Engine]] = {
    LaunchType.LOCAL_MULTI_THREADING: threads.ThreadEngine,
    LaunchType.TEST_MULTI_THREADING: threads.ThreadEngine,
    LaunchType.LOCAL_MULTI_PROCESSING: processes.ProcessEngine,
    LaunchType.TEST_MULTI_PROCESSING: processes.ProcessEngine,
    LaunchType.RAY: ray.RayEngine,
}


def launch(
    programs: lp_program.Program | Sequence[lp_program.Program],
    launch_type: LaunchType | str | None = None,
    xm_resources: Any = None,
    local_resources: Mapping[str, Any] | None = None,
    test_case: Any = None,
    terminal: str | None = None,
    *,
    serialize_py_nodes: bool | None = None,
    controller_xm_requirements: Any = None,
    termination_notice_secs: float | None = None,
    restart_policies: Mapping[str, base.RestartPolicy] | None = None,
    address: str | None = None,
) -> lp_manager.ProgramManager:
    """Starts a program and returns its manager immediately.

    A script that ends after `launch` first waits for the program, as `manager.wait()` does
    explicitly. If it ends with an uncaught exception, it stops the program. With all launch types
    except the test types, Ctrl-C, SIGTERM and SIGHUP (the terminal was closed) stop the program
    gracefully.

    Args:
      programs: The program. If there are several, only the first is launched, as in upstream.
      launch_type: How to run it; None for the flag `--lp_launch_type`.
      xm_resources: Ignored; upstream's cluster resources.
      local_resources: Label -> launch configuration, such as `lp.PythonProcess(env=...)`.
      test_case: A unittest.TestCase at whose end the program is stopped.
      terminal: None or "current_terminal"; upstream's others, also those that the environment
        variable LAUNCHPAD_LAUNCH_LOCAL_TERMINAL names, are accepted with a warning: all output goes
        to this terminal.
      serialize_py_nodes: True to check that all nodes pickle, even if they run in threads.
      controller_xm_requirements: Ignored; upstream's cluster resources.
      termination_notice_secs: Seconds from the request to stop until nodes are killed; 0 kills
        immediately, a negative number never; None for the flag `--lp_termination_notice_secs`.
      restart_policies: Label -> what to do when a node of that group fails, for nodes without their
        own `restart_policy`; by default, a failure ends the program.
      address: "host:port" of the Ray cluster to run on, or "env" for the one that RAY_ADDRESS
        names; None for the flag `--lp_address`. By default, the program starts its own Ray on this
        machine, which stops with the program.

    Raises:
      ValueError: no program, no nodes, an unknown terminal, an unknown or unsupported launch type,
        more resources than are available, text that an absl flag does not accept, a malformed
        LAUNCHPAD_SECRET; the program has servers and is already running, or has two servers with
        one address.
      RuntimeError: a node does not pickle, and `serialize_py_nodes` is set.
      TypeError: a node does not pickle, resources are not a PythonProcess, or a restart policy is
        not a RestartPolicy.
      ConnectionError: there is no such cluster, or it does not accept the code; or this machine has
        no loopback interface, which Reverb needs.
    """
    del xm_resources, controller_xm_requirements
    program = _first(programs)
    launch_type = _launch_type(launch_type)
    lp_flags.tell_ignored()
    _check_terminal(terminal)
    launch_ = _describe(program, launch_type, dict(local_resources or {}), address)
    _apply(restart_policies or {}, program, launch_)
    if serialize_py_nodes:
        for label, nodes in program.groups.items():
            serialization.check_nodes_are_serializable(label, nodes)
    for member in launch_.members:
        for handle in member.node.input_handles:
            handle.connect(member.node, member.label)
    engine_ = LAUNCHERS[launch_type](launch_)
    if termination_notice_secs is None:
        termination_notice_secs = lp_flags.value_of(lp_flags.TERMINATION_NOTICE_SECS)
    supervisor = lp_supervisor.Supervisor(
        launch_.members,
        engine_.make_worker,
        launch_.book,
        termination_notice_secs,
        engine_.close,
    )
    supervisor.launcher = _launcher_runtime(launch_, supervisor)
    is_test = launch_type != LaunchType.RAY and not lp_runtime.is_local_launch(launch_type)
    manager = lp_manager.ProgramManager(supervisor, is_test)
    if test_case is not None:
        test_case.addCleanup(manager.stop_and_wait)
    lp_manager.await_at_exit(manager)
    if not is_test:
        manager.take_signals()
    supervisor.start()
    return manager


def _check_terminal(terminal: str | None) -> None:
    terminal = terminal or os.environ.get("LAUNCHPAD_LAUNCH_LOCAL_TERMINAL")
    if terminal is None:
        return
    if terminal not in _TERMINALS:
        raise ValueError(
            f"expected terminal to be one of {[*_TERMINALS]}, got {terminal!r}; leave it out"
        )
    if terminal != _TERMINALS[0]:
        lp_runtime.logger.warning("terminal=%r: output goes to this terminal instead", terminal)


def _first(programs: lp_program.Program | Sequence[lp_program.Program]) -> lp_program.Program:
    if isinstance(programs, lp_program.Program):
        return programs
    if not programs:
        raise ValueError(f"expected a program, or several, got {programs!r}; give one")
    if len(programs) > 1:
        lp_runtime.logger.warning("%d programs given; only the first is launched", len(programs))
    return programs[0]


def _launch_type(launch_type: LaunchType | str | None) -> LaunchType:
    if launch_type is None:
        lp_flags.parse_if_needed()
        launch_type = lp_flags.LAUNCH_TYPE.value
    try:
        found = LaunchType(launch_type)
    except ValueError:
        found = None
    if found not in LAUNCHERS:  # It may also be one that only upstream supports.
        known = ", ".join(repr(other.value) for other in LAUNCHERS)
        given = launch_type if found is None else found.value
        raise ValueError(
            f"expected launch_type to be one of {known}, got {given!r}; use one of them"
        )
    return found


def _describe(
    program: lp_program.Program,
    launch_type: LaunchType,
    configs: dict[str, Any],
    address: str | None,
) -> engine.Launch:
    unknown = sorted(set(configs) - set(program.groups))
    if unknown:  # Upstream's programs share one table of resources between several programs.
        lp_runtime.logger.warning(
            "local_resources names %s, but the groups are %s", unknown, sorted(program.groups)
        )
    for label, config in configs.items():
        if not isinstance(config, python.PythonProcess):
            raise TypeError(
                f"local_resources[{label!r}] is a {type(config).__name__}; expected a "
                "lp.PythonProcess"
            )
        try:
            serialization.parsed(config.args)
        except flags.IllegalFlagValueError as error:
            raise ValueError(f"args of local_resources[{label!r}]: {error}; correct it") from None
    if launch_type != LaunchType.RAY and address is not None:
        raise ValueError(f"address={address!r} is only for launch_type='ray'")
    if launch_type == LaunchType.RAY and address is None:
        address = lp_flags.value_of(lp_flags.CLUSTER_ADDRESS)
    default = python.PythonProcess()
    members = [
        lp_member.Member(label, index, node, configs.get(label, default), together)
        for label, nodes in program.groups.items()
        for index, (node, together) in enumerate(_flatten(nodes))
    ]
    if not members:
        raise ValueError(f"program {program.name!r} has no nodes")
    names = {address.name for member in members for address in member.node.addresses}
    if reverb.REVERB_PORT_NAME in names:
        ports.check_loopback()
    info = lp_runtime.ProgramInfo(
        program_id=uuid.uuid4().hex,
        secret=tls.secret_of_program(),
        launch_type=launch_type,
        host=tls.LOOPBACK,
        owners=_owners(program, members),
    )
    return engine.Launch(members, info, {}, address)


def _owners(program: lp_program.Program, members: Sequence[lp_member.Member]) -> dict[str, str]:
    """Returns the name of the node that serves each address, by the address's key."""
    owners: dict[str, str] = {}
    for member in members:
        for address in member.node.addresses:
            if address.is_launched:
                raise ValueError(
                    f"program {program.name!r} is already running, or shares {member.name} with "
                    "one that is: wait for its end, or make another program of new nodes"
                )
            if address.key in owners:
                raise ValueError(
                    f"the same server is in {owners[address.key]} and in {member.name}, and its "
                    "address can have one server only; make another node"
                )
            owners[address.key] = member.name
    return owners


def _apply(
    policies: Mapping[str, base.RestartPolicy], program: lp_program.Program, launch_: engine.Launch
) -> None:
    unknown = sorted(set(policies) - set(program.groups))
    if unknown:
        raise ValueError(
            f"restart_policies names {unknown}, but the groups are {sorted(program.groups)}"
        )
    for label, policy in policies.items():
        if not isinstance(policy, base.RestartPolicy):
            raise TypeError(
                f"restart_policies[{label!r}] is a {type(policy).__name__}; expected a "
                "lp.RestartPolicy"
            )
    for member in launch_.members:
        member.restart_policy = member.node.restart_policy or policies.get(member.label)


def _flatten(nodes: Sequence[base.Node]) -> Iterator[tuple[base.Node, int | None]]:
    """Replaces colocations by their nodes; yields each node with its colocation's identity."""
    for node in nodes:
        if isinstance(node, colocation.MultiProcessingColocation):
            if type(node).run is not colocation.MultiProcessingColocation.run:
                raise TypeError(
                    "expected a MultiProcessingColocation without a run() of its own, got "
                    f"{type(node).__name__}: its nodes run one by one; override their run() instead"
                )
            yield from ((inner, id(node)) for inner, _ in _flatten(node.nodes))
        else:
            yield node, None


def _launcher_runtime(
    launch_: engine.Launch, supervisor: lp_supervisor.Supervisor
) -> lp_runtime.NodeRuntime:
    """Makes the runtime of the launching process, for its handles and lp.stop()."""
    runtime = lp_runtime.NodeRuntime(
        "launcher",
        0,
        launch_.info,
        launch_.book,
        functools.partial(supervisor.post, None),
    )
    runtime.is_node = False
    for member in launch_.members:
        for address in member.node.addresses:
            address.bind_to_launcher(runtime)
    lp_runtime.add_launcher_runtime(runtime)
    return runtime
