"""Upstream's module paths, for programs that import from them.

`import launchpad` registers them: `launchpad.nodes.courier.node`, for example, is
`launchpad.nodes.courier` here. What only these paths offer is defined here.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launchpad import errors, lifecycle, runtime
from launchpad.engines import flags, manager, serialization
from launchpad.engines import launch as launching
from launchpad.nodes import base, batching, cacher, colocation, courier, python, reverb
from launchpad.program import Program


def _launcher(kind: runtime.LaunchType) -> Callable[..., manager.ProgramManager]:
    """Returns upstream's `launch` for tests."""

    def launch(
        program: Program,
        test_case: Any,
        local_resources: Mapping[str, Any] | None = None,
        serialize_py_nodes: bool = True,
    ) -> manager.ProgramManager:
        """Starts a program that ends with a test.

        Args:
          program: The program.
          test_case: A unittest.TestCase.
          local_resources: Label -> launch configuration.
          serialize_py_nodes: Whether to check that all nodes pickle.
        """
        return launching.launch(
            program,
            kind,
            local_resources=local_resources,
            test_case=test_case,
            serialize_py_nodes=serialize_py_nodes,
        )

    return launch


def _bind_addresses(nodes: Iterable[base.Node]) -> None:
    """Gives every address of `nodes` a free port of this machine."""
    for node in nodes:
        node.bind_addresses()


def _module(**contents: Any) -> types.ModuleType:
    made = types.ModuleType(__name__)
    vars(made).update(contents)
    return made


class _Status(types.ModuleType):
    """The module `pybind11_abseil.status`, which upstream's wheel contains.

    Reverb's library writes a class of its own into any module of this name when it is loaded. That
    class comes second to this property.
    """

    StatusNotOk = property(lambda self: errors.StatusNotOk)


context = _module(
    LaunchContext=runtime.LaunchContext,
    LaunchType=runtime.LaunchType,
    get_context=lifecycle.get_context,
    is_local_launch=runtime.is_local_launch,
    is_local_launch_or_test=runtime.is_local_launch_or_test,
)
_worker_manager = _module(**vars(lifecycle), WorkerManager=manager.ProgramManager)
_managers = {"worker_manager": _worker_manager, "worker_manager_v2": _worker_manager}

# Parents come before what they contain. `launchpad.launch` itself remains the function.
_MODULES = {
    "context": context,
    "flags": flags,
    "launch": _module(__path__=[]),
    "launch.launch": launching,
    "launch.serialization": serialization,
    "launch.signal_handling": manager,
    "launch.test_multi_threading": _module(__path__=[]),
    "launch.test_multi_threading.address_builder": _module(bind_addresses=_bind_addresses),
    "launch.test_multi_threading.launch": _module(
        launch=_launcher(runtime.LaunchType.TEST_MULTI_THREADING), **_managers
    ),
    "launch.test_multi_processing": _module(__path__=[]),
    "launch.test_multi_processing.launch": _module(
        launch=_launcher(runtime.LaunchType.TEST_MULTI_PROCESSING), **_managers
    ),
    "launch.local_multi_threading": _module(__path__=[]),
    "launch.local_multi_threading.launch": launching,
    "launch.local_multi_processing": _module(__path__=[]),
    "launch.local_multi_processing.launch": launching,
    **{f"launch.{name}": module for name, module in _managers.items()},
    "nodes.cacher.node": cacher,
    "nodes.courier.courier_utils": batching,
    "nodes.courier.node": courier,
    "nodes.multi_processing_colocation": _module(__path__=[]),
    "nodes.multi_processing_colocation.node": colocation,
    "nodes.multi_threading_colocation": _module(__path__=[]),
    "nodes.multi_threading_colocation.node": colocation,
    "nodes.python.local_multi_processing": python,
    "nodes.python.node": python,
    "nodes.reverb.node": reverb,
    "program_stopper": _module(__path__=[]),
    "program_stopper.program_stopper": lifecycle,
    "stop_program": _module(__path__=[]),
    "stop_program.stop": lifecycle,
}


def register() -> None:
    """Makes the modules importable under upstream's paths."""
    for path, module in _MODULES.items():
        sys.modules[f"{__package__}.{path}"] = module
        parent, _, name = f"{__package__}.{path}".rpartition(".")
        if path != "launch":
            setattr(sys.modules[parent], name, module)
    status = _Status("pybind11_abseil.status")
    abseil = types.ModuleType("pybind11_abseil")
    vars(abseil).update(status=status, __path__=[])
    sys.modules.update({abseil.__name__: abseil, status.__name__: status})
