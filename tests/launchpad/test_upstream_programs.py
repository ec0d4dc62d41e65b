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
        *("address", "context", "flags", "launch.launch", "launch.serialization"),
        *("launch.test_multi_threading.address_builder", "launch.worker_manager", "nodes.base"),
        *("nodes.cacher.node", "nodes.courier.courier_utils", "nodes.courier.node"),
        *("nodes.dereference", "nodes.multi_processing_colocation.node"),
        *("nodes.multi_threading_colocation.node", "nodes.python.local_multi_processing"),
        *("nodes.python.node", "nodes.reverb.node", "program", "stop_program.stop"),
        *("program_stopper.program_stopper", "launch.local_multi_processing.launch"),
    ],
)
def test_module_paths(name):
    assert importlib.import_module(f"launchpad.{name}") is not None
