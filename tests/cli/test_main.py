"""Dispatch, options, and how errors look."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rl_replicator.cli import main, streams

ROOT = Path(__file__).parents[2]
FAKE = ("train", "fake")


def test_help_names_and_explains_every_command(call):
    text = call("--help").stdout
    for words in ((), ("-h",), ("help",)):
        done = call(*words) if words else call("--help")
        assert (done.returncode, done.stderr, done.stdout) == (0, "", text)
    for name in (*main.COMMANDS, "envs", "video"):
        assert f"\n  {name} " in text
        done = call(name, *(["x"] if name == "sweep" else []), "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"usage: rl-replicator {name}")


def test_help_loads_nothing_heavy_and_takes_little_time():
    code = """
import resource, sys
from rl_replicator.cli import main
main.main(["--help"])
heavy = ("tensorflow", "numpy", "tyro", "environments", "dm_control", "acme", "launchpad")
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.splitlines()[-2:]
    assert heavy == "[]"
    assert float(seconds) < 2  # A tenth of that on an idle machine.


def test_train_and_eval(call):
    done = call(*FAKE, "--env", "cartpole:swingup", "--resume", "--agent.layers", 5, 6)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "trained cartpole:swingup 10 True Net(learning_rate=0.0001, layers=(5, 6), clip=None)\n"
    )
    done = call("eval", "run", "--episodes", 4)
    assert (done.returncode, done.stdout, done.stderr) == (0, "evaluated run 4 1000\n", "")
    done = call("eval", "--help")
    assert (
        done.returncode == 0
        and "Of a run of crr, d4pg, dqn, fake, impala, mrq, sac, td3:" in done.stdout
    )
    assert "Of a run of resnet, sngan:" in done.stdout and "--data-dir" in done.stdout
    done = call("eval", "run", "--episodes", 0)
    assert done.returncode == 2 and "--episodes: expected at least 1, got 0" in done.stderr


@pytest.fixture
def shell(tmp_path, site):
    """Runs a line of bash with `rl-replicator` for RL; its output has the exit status of RL."""

    def run(line, **environment):
        line = line.replace("RL", f"{sys.executable} -m rl_replicator.cli.main")
        path = os.pathsep.join([str(site), str(ROOT)])
        return subprocess.run(
            ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.parametrize(("words", "status"), [("--help", 0), ("train fake --env status", 3)])
def test_a_reader_that_leaves_changes_no_status(shell, words, status):
    done = shell(f"RL {words} |& true")
    assert done.stdout == f"{status}\n" and "Error" not in done.stderr


def test_closed_streams_change_no_status(shell, tmp_path):
    """Nor does a file get a closed stream's descriptor, and with it what is printed."""
    (tmp_path / "program.py").write_text(
        "import os, sys\nfrom rl_replicator.cli import main\nstatus = main.main(['envs'])\n"
        "with open('file', 'w') as file:\n    print(file.fileno() > 2, status, file=file)\n"
        "print(sys.stdin.closed, file=sys.stderr)"
    )
    done = shell(f"{sys.executable} program.py <&- >&- 2>&-")
    assert done.stdout == "0\n" and "Error" not in done.stderr
    assert (tmp_path / "file").read_text() == "True 0\n"


def test_names_that_the_output_cannot_encode_are_printed_with_replacements():
    for encoding in ("utf-8", "ascii", "cp1252"):
        raw = io.BytesIO()
        text = io.TextIOWrapper(raw, encoding, newline="\n", write_through=True)
        print("caf", os.fsdecode(b"\xe9"), file=streams.LastingStream(text))
        assert raw.getvalue() == b"caf ?\n"


def test_the_notes_of_libraries_are_not_shown():
    program = (
        "import os, sys\nfrom rl_replicator.cli import streams\nwith streams.lasting():\n"
        "    import reverb\n"
        "    table = reverb.Table.queue('queue', 1)\n"
        "    server = reverb.Server([table])\n"
        "    client = server.localhost_client()\n"
        "    client.insert([1.0], {'queue': 1.0})\n"
        "    folder = os.path.dirname(client.checkpoint())\n"
        "    server.stop()\n"
        "    stored = reverb.checkpointers.DefaultCheckpointer(folder)\n"
        "    table = reverb.Table.queue('queue', 1)\n"
        "    server = reverb.Server([table], checkpointer=stored)\n"
        "    assert server.localhost_client().server_info()['queue'].current_size == 1\n"
        "    server.stop()\n"
        "    sys.stderr.write('[replay/0] [reverb/cc/a.cc:1] Stored checkpoint to /x\\n')\n"
        "    print('(replay/0 pid=17, ip=10.0.0.2) [reverb/cc/a.cc:1] Loading', file=sys.stderr)\n"
        "    print('\\x1b[2m(replay/0 pid=1)\\x1b[0m [reverb/cc/a.cc:1] Stored', file=sys.stderr)\n"
        "    cost = b'W0000 00:00:17.5 42 op_level_cost_estimator.cc:699] Error in PredictCost()'\n"
        "    first = b'WARNING: All log messages before absl::InitializeLog() is called are '\n"
        "    os.write(2, first + b'\\n' + cost + b'\\n[learner/0] ' + first + b'\\n')\n"
        "    os.write(2, b'[learner/0] ' + cost + b'\\nof a library\\n')\n"
        "    sys.stderr.write('of ours, without an end of line')"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    told = done.stderr.replace("of a library\n", "", 1)
    assert (done.returncode, told) == (0, "of ours, without an end of line")
    assert told != done.stderr


def test_strangers_at_a_port_of_a_run_do_not_flood_its_output():
    program = """
import socket
from rl_replicator.cli import main
main.configure_libraries()
from launchpad.rpc import server, tls
node = server.MethodServer(b"r" * 32, identity="node")
node.bind("same", lambda value: value)
node.start()
with socket.create_connection(("127.0.0.1", node.port)) as stranger:
    stranger.sendall(b"GET / HTTP/1.0")
    stranger.shutdown(socket.SHUT_WR)
    while stranger.recv(1000):
        pass
node.stop()
"""
    environment = {key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_of_the_output_is_an_error_of_one_line_but_ends_no_training(shell, unbuffered):
    done = shell("RL --version > /dev/full", PYTHONUNBUFFERED=unbuffered)
    reason = "[Errno 28] No space left on device"
    told = f"rl-replicator: error: cannot write to standard output: {reason}\n"
    assert (done.stdout, done.stderr) == ("74\n", told)
    done = shell("RL train fake --env status &> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert done.stdout == "3\n" and "Error" not in done.stderr


@pytest.mark.parametrize(
    ("env", "status", "first", "last"),
    [
        ("status", 3, "about to end", "about to end"),
        ("exit", 1, "the simulator has ended", "the simulator has ended"),
        ("crash", 1, "Traceback", "RuntimeError: something broke"),
        ("pipe", 1, "Traceback", "BrokenPipeError: [Errno 32] the worker of a learner's data"),
        ("node", 1, "Traceback", "node actor/0 failed: RuntimeError: the environment broke"),
        ("interrupt", 130, "", ""),
    ],
)
def test_how_a_training_ends(call, env, status, first, last):
    """A failed node shows the traceback of the node alone."""
    done = call(*FAKE, "--env", env)
    lines = done.stderr.splitlines() or [""]
    assert done.returncode == status
    assert lines[0].startswith(first) and lines[-1].startswith(last)
    assert done.stderr.count("Traceback") <= 1


def test_envs(call):
    done = call("envs")
    names = done.stdout.splitlines()
    assert "cartpole:swingup" in names and "quadruped:escape" in names
    assert len(names) == len(set(names)) >= 50 and names == sorted(names)
    assert "package.module:function" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_folder_with_the_name_of_a_package_of_ours_does_no_harm(command, tmp_path):
    for name in ("environments", "agents", "json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "launchpad.py").write_text("raise RuntimeError('not this one')")
    (tmp_path / "mine.py").write_text("from environments.fakes import target")
    done = command(*FAKE, "--env", "mine:target")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("trained mine:target ")


def test_a_script_is_told_of_its_own_folders(tmp_path):
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "__init__.py").touch()
    done = _run_script(tmp_path, "'td3'")
    message = "expected the package environments in .*, found .*; rename or"
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    "arguments", ["'td3', env='script:make', launch='processes'", "'script:make'"]
)
def test_a_script_is_told_of_the_main_guard(tmp_path, arguments):
    """It defines the environment or the learner that it trains."""
    done = _run_script(tmp_path, arguments)
    message = "of .*script.py below 'if __name__ == .__main__.:', because the module script is imp"
    assert done.returncode == 2 and re.search(message, done.stderr.splitlines()[-1]), done.stderr
    assert "Traceback" not in done.stderr


def _run_script(folder, arguments):
    script = folder / "script.py"
    script.write_text(f"import rl_replicator\nrl_replicator.train({arguments})")
    command = [sys.executable, str(script)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_module_in_a_folder_with_the_name_of_a_package_of_ours(call, tmp_path):
    (tmp_path / "environments").mkdir()
    (tmp_path / "environments" / "mine.py").touch()
    done = call("check-env", "environments.mine:make")
    assert done.returncode == 2
    assert f"so rename {tmp_path / 'environments'}; " in done.stderr


def test_a_working_directory_that_was_deleted(monkeypatch, tmp_path, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.main(["--version"]) == 2
    assert "expected a working directory, but it was deleted" in capsys.readouterr().err


def test_libraries_are_configured_before_they_are_imported(monkeypatch):
    names = ("TF_CPP_MIN_LOG_LEVEL", "OPENBLAS_NUM_THREADS", "SDL_AUDIODRIVER", "SDL_VIDEODRIVER")
    for name in (*names, "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    main.configure_libraries()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["SDL_AUDIODRIVER"] == os.environ["SDL_VIDEODRIVER"] == "dummy"
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
