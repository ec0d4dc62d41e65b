"""Conformance tests of all engines: the same programs give the same results."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

import launchpad as lp
from tests.launchpad import programs
from tests.waiting import run_python, wait_until


def test_run_is_called_and_the_program_ends_when_all_have_run(engine):
    program, recorder = programs.recorder_program()
    tree = {
        "list": [recorder],
        "tuple": (1, {"deep": recorder}),
        "pair": programs.Pair(0, recorder),
        "config": programs.Config(recorder, name="dataclass"),
        "plain": {"a": [1, 2]},
    }
    program.add_node(lp.PyNode(programs.record_tree, tree), label="tree")
    manager = lp.launch(program, engine)
    client = manager.resolve(recorder)
    wait_until(lambda: len(client.entries()) == 4)
    # The recorder continues to serve until somebody waits for the program.
    assert client.entries() == ["list", "tuple", "namedtuple", "dataclass"]
    assert manager.wait(timeout=60)


def test_a_failure_ends_the_program_and_names_its_root(engine):
    program, recorder = programs.recorder_program()
    program.add_node(lp.PyNode(programs.work_until_interrupted, recorder), label="worker")
    with program.group("failing"):
        program.add_node(lp.PyNode(programs.leave_on_stop, recorder))
        program.add_node(lp.CourierNode(programs.Failing, recorder))
    manager = lp.launch(program, engine)
    with pytest.raises(lp.NodeFailedError) as caught:
        manager.wait(timeout=90)
    error = caught.value
    assert (error.label, error.index) == ("failing", 1)
    assert (error.exception_type, error.message) == ("ValueError", "no such weather")
    assert isinstance(error.__cause__, ValueError)
    assert 'raise ValueError("no such weather")' in error.traceback_text
    assert str(error).endswith("node failing/1 failed: ValueError: no such weather")


def test_stop_reaches_nodes_that_wait_and_nodes_that_do_not_look(engine, tmp_path):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    program.add_node(lp.PyNode(programs.leave_on_stop, recorder), label="aware")
    loop = lp.PyNode(programs.save_on_the_way_out, recorder, tmp_path / "saved")
    program.add_node(loop, label="loop")
    program.add_node(lp.PyNode(programs.stop_handlers, recorder), label="handlers")
    # It does not wait for the end of the notice.
    assert lp.launch(program, engine, termination_notice_secs=100).wait(timeout=60)
    # The recorder served until all had left. The loop may be interrupted after the other node has
    # left; a second interrupt would cut off what it saves.
    entries = (tmp_path / "entries").read_text().splitlines()
    assert "left" in entries and "handler" in entries and "unwanted" not in entries
    assert (tmp_path / "saved").exists()


def test_a_node_that_does_not_stop_is_given_up(engine, caplog):
    program, recorder = programs.recorder_program()
    program.add_node(lp.PyNode(programs.ignore_stop, recorder), label="deaf")
    manager = lp.launch(program, engine, termination_notice_secs=1)
    wait_until(manager.resolve(recorder).entries)
    stopped = time.monotonic()
    manager.stop()
    assert manager.wait(timeout=60)
    assert time.monotonic() - stopped >= 1
    are_threads = engine == lp.LaunchType.TEST_MULTI_THREADING
    # On a busy machine, the recorder may not have ended either.
    told = (
        "still running after 1 s .threads cannot be killed." if are_threads else "killed after 1 s"
    )
    assert re.search(rf"{told}: (recorder/0, )?deaf/0", caplog.text)


def test_the_owner_of_an_address_gets_a_port_that_it_can_bind(engine):
    program, recorder = programs.recorder_program()
    address = lp.Address("demo")
    server = lp.PyNode(programs.serve_port, address, recorder)
    address.assign(server)
    program.add_node(server, label="server")
    program.add_node(lp.PyNode(programs.use_port, address), label="client")
    manager = lp.launch(program, engine)
    client = manager.resolve(recorder)
    assert wait_until(client.entries) == [b"hello"]
    assert manager.wait(timeout=60)


def test_a_program_that_a_node_has_launched_stops_in_order_with_it(engine, tmp_path):
    path = tmp_path / "entries"
    program = lp.Program("outer")
    program.add_node(lp.PyNode(programs.launch_inside, path), label="outer")
    manager = lp.launch(program, engine, termination_notice_secs=100)
    wait_until(path.exists)
    manager.stop_and_wait()
    assert path.read_text() == "waiting\nsaved\ninner has ended\n"


def test_dm_launchpad_beside_ours_is_an_error(tmp_path):
    metadata = tmp_path / "dm_launchpad-0.5.2.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: dm-launchpad\nVersion: 0.5.2\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = run_python("-c", "import launchpad", PYTHONPATH=path)
    assert done.returncode == 1
    assert "ImportError: dm-launchpad 0.5.2 is installed" in done.stderr.splitlines()[-1]
