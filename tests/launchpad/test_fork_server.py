"""Forked nodes: what they share, what they must not share, and what happens without a fork."""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import random
import signal
import sys

import numpy as np
import psutil
import pytest
from absl import flags

import launchpad as lp
from launchpad.engines import forking
from tests.waiting import run_python, wait_until

pytestmark = pytest.mark.processes
_FLAG = "lp_demo_flag"


def _is_forked() -> bool:
    return not any("process_entry" in word for word in sys.orig_argv)


def _describe(path: str) -> None:
    """Appends a description of this process to a file, then waits for the stop."""
    about = {
        "pid": os.getpid(),
        "is_forked": _is_forked(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "stdin": os.readlink("/proc/self/fd/0"),
        "title": psutil.Process().cmdline()[:4],
        "drawn": (random.random(), np.random.random(), os.urandom(4).hex()),
        "directory": os.getcwd(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "demo": os.environ.get("DEMO"),
        "argv": sys.argv[1:],
        "flag": flags.FLAGS[_FLAG].value if _FLAG in flags.FLAGS else None,
    }
    with open(path, "a") as file:
        file.write(f"{about}\n")
    lp.wait_for_stop()


def _described(path, count):
    """Waits for the descriptions of `count` nodes, and returns all that were written."""

    def rows():
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [ast.literal_eval(line) for line in lines if line.endswith("\n")]
        return whole if len(whole) >= count else None

    return wait_until(rows)


def _program(path, *labels):
    program = lp.Program("described")
    for label in labels:
        with program.group(label):
            program.add_node(lp.PyNode(_describe, str(path)))
    return program


def test_nodes_are_forked_unless_their_environment_is_read_at_import(tmp_path):
    """Forked ones are processes of their own."""
    program = _program(tmp_path / "rows", "one", "gpus", "env", "fresh")
    resources = {
        "gpus": lp.PythonProcess(gpus=0),  # CUDA_VISIBLE_DEVICES is read when GPUs are used.
        "env": lp.PythonProcess(env={"DEMO": "3"}),
        "fresh": lp.PythonProcess(fresh_interpreter=True),
    }
    manager = lp.launch(program, "test_mp", local_resources=resources)
    rows = _described(tmp_path / "rows", 4)
    names = {pid: name for name, pid in manager.processes().items()}
    manager.stop_and_wait()
    found = {names[r["pid"]]: (r["is_forked"], r["devices"], r["demo"]) for r in rows}
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    assert found == {
        "one/0": (True, devices, None),
        "gpus/0": (True, "", None),
        "env/0": (False, devices, "3"),
        "fresh/0": (False, devices, None),
    }
    for row in rows:
        assert row["group"] == row["session"] == row["pid"]
        assert row["stdin"] == "/dev/null"
        assert row["directory"] == os.getcwd()
        if row["is_forked"]:
            title = ["-m", "launchpad.engines.process_entry", names[row["pid"]]]
            assert row["title"][1:] == title
    one, two = (row["drawn"] for row in rows if row["is_forked"])
    assert not any(a == b for a, b in zip(one, two, strict=True))


def test_nodes_are_forked_with_a_long_tmpdir(tmp_path):
    """The path of a Unix socket has at most 107 bytes."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    program = (
        "import sys, launchpad as lp\n"
        "node = lp.PyNode(lambda: print(any('process_entry' in x for x in sys.orig_argv)))\n"
        "lp.launch(lp.make_program(node), 'test_mp').wait()"
    )
    done = run_python("-c", program, TMPDIR=str(folder))
    assert "[node/0] False" in done.stdout and not [*folder.iterdir()]


def test_a_process_that_has_imported_pyarrow_can_be_forked():
    load = "from launchpad.engines import forking; forking.load(['pyarrow'], [], [])"
    assert run_python("-c", load).returncode == 0


def test_a_node_that_starts_again_finds_the_surroundings_of_the_launch(tmp_path, monkeypatch):
    directory = os.getcwd()
    policy = lp.RestartPolicy(initial_backoff_secs=0.1)
    program = _program(tmp_path / "rows", "own", "node")
    resources = {"own": lp.PythonProcess(args={_FLAG: "7"})}
    if _FLAG not in flags.FLAGS:
        flags.DEFINE_integer(_FLAG, 1, "For these tests.")
    was_parsed = flags.FLAGS.is_parsed()
    monkeypatch.setattr(sys, "argv", ["program", "before"])
    flags.FLAGS(["program", f"--{_FLAG}=5"])
    try:
        manager = lp.launch(
            program, "test_mp", local_resources=resources, restart_policies={"node": policy}
        )
        # The first processes may not have started before this line.
        sys.argv[1:] = ["after"]
        flags.FLAGS[_FLAG].value = 6
        _described(tmp_path / "rows", 2)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DEMO", "4")
        os.kill(manager.processes()["node/0"], signal.SIGKILL)
        *first, again = _described(tmp_path / "rows", 3)
        manager.stop_and_wait()
    finally:
        flags.FLAGS[_FLAG].unparse()
        if not was_parsed:
            flags.FLAGS.unparse_flags()
    assert (again["directory"], again["demo"]) == (directory, None)
    assert [row["argv"] for row in (*first, again)] == [["before"]] * 3
    assert ({row["flag"] for row in first}, again["flag"]) == ({5, 7}, 5)


def test_nodes_import_from_where_the_launcher_does(tmp_path, monkeypatch):
    """From a directory that PYTHONPATH cannot name, beside a path entry that Python ignores."""
    directory = tmp_path / "with:colon"
    directory.mkdir()
    (directory / "far_away.py").write_text("def is_here():\n    pass\n")
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    program = lp.Program("far")
    for label in ("forked", "fresh"):
        function = importlib.import_module("far_away").is_here
        program.add_node(lp.PyNode(function), label=label)
    resources = {"fresh": lp.PythonProcess(fresh_interpreter=True)}
    assert lp.launch(program, "test_mp", local_resources=resources).wait(timeout=60)


def test_the_end_of_a_forked_node_that_reports_none_is_told():
    program = lp.make_program(lp.PyNode(os._exit, 0))
    told = "node node/0 failed: ProcessDied: .*ended with status 0"
    with pytest.raises(lp.NodeFailedError, match=told):
        lp.launch(program, "test_mp").wait(timeout=60)


def _server(*_) -> psutil.Process:
    """Returns the process of the newest fork server; numbers of processes start again."""
    servers = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # It has ended.
            if "forkserver" in " ".join(process.cmdline()):
                servers.append(process)
    return max(servers, key=psutil.Process.create_time)


def test_a_fork_server_that_died_or_froze_is_replaced(tmp_path, monkeypatch):
    """Its nodes survive; one that dies later is forked from another server, or starts afresh."""
    policy = lp.RestartPolicy(initial_backoff_secs=0.1)
    program = _program(tmp_path / "rows", "node", "other")
    manager = lp.launch(program, "test_mp", restart_policies={"node": policy})
    rows = _described(tmp_path / "rows", 2)
    _server().kill()
    assert not manager.wait(0.5) and all(psutil.pid_exists(row["pid"]) for row in rows)
    frozen = None
    for count, is_forked in ((3, True), (4, False), (5, True)):
        os.kill(manager.processes()["node/0"], signal.SIGKILL)
        row = _described(tmp_path / "rows", count)[-1]
        assert row["is_forked"] == is_forked
        assert row["drawn"] not in [r["drawn"] for r in rows]
        if frozen is None:
            frozen = _server()
            frozen.suspend()
            monkeypatch.setattr(forking, "_FORK_SECS", 1.0)  # It has answered once.
    assert not frozen.is_running()
    manager.stop_and_wait()
    server = forking.ForkServer(["json"])
    server.ensure_running()
    _server().suspend()  # While it imports.
    with pytest.raises(forking.ForkError, match="did not answer"):
        server.fork("node/0", [0, 1, 1, 2])
    server.ensure_running()
    frozen = _server()
    frozen.suspend()
    wait_until(lambda: frozen.status() == psutil.STATUS_STOPPED)
    server.close()
    frozen.wait(60)  # Nothing else would end it.


@pytest.mark.parametrize(
    ("code", "is_forked"),
    [
        ("raise OSError('it cannot be imported')", True),
        ("import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()", False),
    ],
)
def test_modules_that_do_not_stand_a_fork(tmp_path, monkeypatch, caplog, code, is_forked):
    (tmp_path / "odd_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    lp.preload("odd_module")
    manager = lp.launch(_program(tmp_path / "rows", "one", "two"), "test_mp")
    rows = _described(tmp_path / "rows", 2)
    manager.stop_and_wait()
    assert [row["is_forked"] for row in rows] == [is_forked] * 2
    is_told = any(line.startswith("nodes are not forked") for line in caplog.messages)
    assert is_told != is_forked


def test_the_fork_server_ends_with_its_launcher():
    code = """
import launchpad as lp, psutil
lp.preload("json")
program = lp.Program("short")
program.add_node(lp.PyNode(print, "done"), label="node")
lp.launch(program, "local_mp").wait()
print(*(child.pid for child in psutil.Process().children()))
"""
    done = run_python("-c", code)
    line, pids = done.stdout.split("\n")[:2]
    assert (line, done.stderr) == ("[node/0] done", "") and pids
    for pid in map(int, pids.split()):
        wait_until(lambda pid=pid: not psutil.pid_exists(pid))


def test_an_import_of_tensorflow_meanwhile_starts_no_second_server(monkeypatch):
    """It sets two variables and appends a directory, and has done so in the server."""
    server = forking.ForkServer(["json"])
    for name, value in (("TF2_BEHAVIOR", "1"), ("TPU_ML_PLATFORM", "Tensorflow")):
        monkeypatch.setenv(name, f"{value}, now")
    monkeypatch.setattr(sys, "path", [*sys.path, "/appended"])
    assert server.suits(["json"])
    monkeypatch.setattr(sys, "path", ["/first", *sys.path])
    assert not server.suits(["json"])
