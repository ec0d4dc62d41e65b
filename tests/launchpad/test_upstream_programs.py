"""Programs written for DeepMind's Launchpad run unmodified."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import launchpad as lp
from launchpad.examples.consumer_producers import program as consumer_producers
from tests.launchpad import upstream_programs


def test_it_runs_unmodified(engine, tmp_path):
    path = tmp_path / "result"
    lp.launch(upstream_programs.make_program(str(path)), launch_type=engine).wait()
    assert path.read_text() == "[[2, 2, 2], [3, 3, 3]] True"


@pytest.mark.parametrize(
    "name",
    [
        *("address", "context", "flags", "launch.launch", "launch.serialization"),
        *("launch.test_multi_threading.address_builder", "launch.worker_manager", "nodes.base"),
        "launch.worker_manager_v2",
        *("nodes.cacher.node", "nodes.courier.courier_utils", "nodes.courier.node"),
        *("nodes.dereference", "nodes.multi_processing_colocation.node"),
        *("nodes.multi_threading_colocation.node", "nodes.python.local_multi_processing"),
        *("nodes.python.node", "nodes.reverb.node", "program", "stop_program.stop"),
        *("program_stopper.program_stopper", "launch.local_multi_processing.launch"),
    ],
)
def test_module_paths(name):
    assert importlib.import_module(f"launchpad.{name}") is not None


def test_steps_of_a_consumer_that_does_not_run(capsys):
    """As in upstream's test of this example, with the names that its other tests use."""
    launch = importlib.import_module("launchpad.launch.test_multi_threading.launch")
    program = consumer_producers.make_program(num_producers=3)
    (consumer,) = program.groups["consumer"]
    consumer.disable_run()
    program.add_node(lp.PyNode(launch.worker_manager_v2.wait_for_stop), label="block")
    manager = launch.launch(program, test_case=None)
    for _ in range(2):
        consumer.create_handle().dereference().step()
    manager.stop_and_wait()
    assert capsys.readouterr().out == 2 * "Results: 3\n"


_ENDS = ["polled", "the program has ended", "used the event", "waited", "was interrupted"]


@pytest.mark.parametrize("launch_type", ["local_mt", "local_mp"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("consumer_producers", ["Results: 3"]),
        ("batching", ["client 0: 90", "client 1: 110", "client 2: 130"]),
        ("hello_world", ["Hello World!!!"]),
        ("program_wait", 2 * _ENDS),
    ],
)
def test_the_examples_run_as_commands(name, told, launch_type):
    ignored = ["--lp_worker_manager_v2", "--tmux_session_name=mine", "--tmux_open_window"]
    flags = {"consumer_producers": ["--num_producers=3"], "batching": ["--num_clients=3"]}
    flags["hello_world"] = ignored
    command = [sys.executable, "-m", f"launchpad.examples.{name}.launch"]
    command += [f"--lp_launch_type={launch_type}", *flags.get(name, [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    for flag in ignored:
        says = f"{flag.partition('=')[0]} has no effect here\n" in done.stderr
        assert says == (name == "hello_world"), done.stderr
    # Lines of threads may run into each other.
    assert {text: done.stdout.count(text) for text in told} == {t: told.count(t) for t in told}
