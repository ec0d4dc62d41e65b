"""Programs written for DeepMind's Launchpad run unmodified."""

from __future__ import annotations

import importlib

import pytest

import launchpad as lp
from tests.launchpad import upstream_programs

_PROGRAMS = {
    "consumer": (upstream_programs.make_consumer_program, "[0, 1, 4]"),
    "batching": (upstream_programs.make_batching_program, "([0.0, 2.0, 4.0, 6.0], True)"),
    "reverb": (upstream_programs.make_reverb_program, "[0, 1, 2]"),
    "cacher": (upstream_programs.make_cacher_program, "([[2, 2, 2], [3, 3, 3]], True)"),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_it_runs_unmodified(engine, name, tmp_path):
    make_program, expected = _PROGRAMS[name]
    path = tmp_path / "result"
    lp.launch(make_program(str(path)), launch_type=engine).wait()
    assert path.read_text() == expected


@pytest.mark.parametrize(
    "name",
    [
        "address.Address",
        "address.SimpleLocalAddressBuilder",
        "address.get_port_from_address",
        "context.LaunchType",
        "context.get_context",
        "context.is_local_launch",
        "context.is_local_launch_or_test",
        "flags.LAUNCH_TYPE",
        "launch.launch.launch",
        "launch.test_multi_threading.address_builder.bind_addresses",
        "launch.worker_manager.wait_for_stop",
        "nodes.base.Handle",
        "nodes.base.Node",
        "nodes.cacher.node.CacherNode",
        "nodes.courier.courier_utils.batched_handler",
        "nodes.courier.courier_utils.make_courier_server",
        "nodes.courier.node.CourierClient",
        "nodes.courier.node.CourierHandle",
        "nodes.courier.node.CourierNode",
        "nodes.dereference.Deferred",
        "nodes.dereference.maybe_dereference",
        "nodes.multi_processing_colocation.node.MultiProcessingColocation",
        "nodes.multi_threading_colocation.node.MultiThreadingColocation",
        "nodes.python.local_multi_processing.PythonProcess",
        "nodes.python.node.PyClassNode",
        "nodes.python.node.PyNode",
        "nodes.reverb.node.ReverbNode",
        "program.Program",
        "program.make_program",
        "program_stopper.program_stopper.make_program_stopper",
        "stop_program.stop.stop",
    ],
)
def test_module_paths(name):
    module, _, attribute = name.rpartition(".")
    assert getattr(importlib.import_module(f"launchpad.{module}"), attribute) is not None


def test_launch_types_of_upstream():
    values = {"local_mt", "local_mp", "test_mt", "test_mp", "local_docker", "vertex_ai"}
    assert values < {launch_type.value for launch_type in lp.LaunchType}
    assert lp.is_local_launch("local_mp") and not lp.is_local_launch("ray")
    assert lp.is_local_launch_or_test("test_mt") and not lp.is_local_launch_or_test("ray")
