"""Dispatch, options, and how errors look."""

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import launchpad as lp
from launchpad.errors import ExceptionRecord
from rl_replicator.cli import main, streams

ROOT = Path(__file__).parents[2]
FAKE = ("train", "fake")


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_help_names_every_command(call, monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["rl-replicator"])
    done = call(*words)
    assert (done.returncode, done.stderr) == (0, "")
    for name in (*main.COMMANDS, "envs", "video"):
        assert f"\n  {name} " in done.stdout


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


@pytest.mark.parametrize("name", ["train", "eval", "video", "plot", "compare", "envs", "doctor"])
def test_every_command_explains_itself(call, name):
    done = call(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: rl-replicator {name}")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("trian", "fake"), "got 'trian'; did you mean 'train'? 'rl-replicator --help' explains"),
        ((*FAKE, "--env", "x", "--agent.leraning-rate", "1"), "--agent.learning-rate FLOAT"),
        ((*FAKE, "--env", "x", "--steps", "abc"), "--steps: invalid literal for int() .* 'abc'"),
        ((*FAKE, "--env", "x", "--steps"), "Missing value for argument '--steps'"),
        ((*FAKE, "--env", "x", "--agent.layers", "8", "z"), "--agent.layers: .* 'z'"),
        (
            (*FAKE, "--env", "x", "--agent.learning-rate", "-1"),
            "--agent.learning-rate: expected more than 0, got -1.0",
        ),
        (
            (*FAKE, "--env", "x", "--launch", "cloud"),
            "'cloud' .* '--launch'. .* ('threads', 'process",
        ),
        (FAKE, "--env STR"),
        ((*FAKE, "--env", "x", "y"), "Unrecognized options: y"),
        (("train",), "expected something to train ("),
        (("train", "fkae"), "got 'fkae'; did you mean 'fake'?"),
        (
            (*FAKE, "--env", "cartpole:swinup"),
            "got 'cartpole:swinup'; did you mean cartpole:swingup",
        ),
        ((*FAKE, "--env", "wrapped"), "got 'cartpole:swinup'; did you mean cartpole:swingup"),
        (("eval",), "expected RUN_DIR after 'rl-replicator eval', got nothing;"),
        (("eval", "--episodes", "3"), "expected RUN_DIR after 'rl-replicator eval', got --epi"),
        (("eval", "nowhere"), "of a run, but there is no nowhere/config.json"),
        (("video", "nowhere"), "expected the directory of a run"),
        (("plot",), "expected at least one RUN_DIR, got none"),
        (("plot", "nowhere"), "expected the directory of a run"),
        (("plot", "nowhere", "--out", "a.jpg"), "--out: expected a name that ends in .png"),
        (("envs", "--all"), "Unrecognized options: --all"),
    ],
)
def test_bad_input_names_the_option_and_what_came(call, words, text):
    done = call(*words)
    assert (done.returncode, done.stdout) == (2, "")
    found = " ".join(re.sub("[\u2500-\u257f]", " ", done.stderr).split())
    assert all(part in found for part in text.split(" .* ")) and "Traceback" not in found, found


def test_train_and_eval(call, command):
    done = command(*FAKE, "--env", "cartpole:swingup", "--resume", "--agent.layers", 5, 6)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "trained cartpole:swingup 10 True Net(learning_rate=0.0001, layers=(5, 6), clip=None)\n"
    )
    done = call("eval", "run", "--episodes", 4)
    assert (done.returncode, done.stdout, done.stderr) == (0, "evaluated run 4 1000\n", "")
    done = call("eval", "run", "--episodes", 0)
    assert done.returncode == 2 and "--episodes: expected at least 1, got 0" in done.stderr


@pytest.mark.parametrize(("words", "status"), [("--help", 0), ("train fake --env status", 3)])
@pytest.mark.parametrize("pipe", ["|", "|&"])
def test_a_reader_that_leaves_changes_no_status(tmp_path, site, words, status, pipe):
    line = f"{sys.executable} -m rl_replicator.cli.main {words} {pipe} true"
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{status}\n"
    assert "Error" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_change_no_status(tmp_path, site, closed):
    """Nor does a file get a closed stream's descriptor, and with it what is printed."""
    program = (
        "import os, sys\nfrom rl_replicator.cli import main\nstatus = main.main(['envs'])\n"
        "with open('file', 'w') as file:\n    print(file.fileno() > 2, status, file=file)\n"
        "print(sys.stdin.closed, file=sys.stderr)"
    )
    line = f"{sys.executable} -c {shlex.quote(program)} {closed}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Error" not in done.stderr
    assert (tmp_path / "file").read_text() == "True 0\n"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252"])
def test_names_that_the_output_cannot_encode_are_printed_with_replacements(encoding):
    raw = io.BytesIO()
    text = io.TextIOWrapper(raw, encoding, newline="\n", write_through=True)
    print("caf", os.fsdecode(b"\xe9"), file=streams.LastingStream(text))
    assert raw.getvalue() == b"caf ?\n"


def test_the_notes_of_reverb_are_not_shown():
    program = (
        "import os, sys\nfrom rl_replicator.cli import streams\nwith streams.lasting():\n"
        "    import reverb\n"
        "    table = reverb.Table.queue('queue', 1)\n"
        "    server = reverb.Server([table])\n"
        "    server.localhost_client().checkpoint()\n"
        "    server.stop()\n"
        "    sys.stderr.write('[replay/0] [reverb/cc/a.cc:1] Stored checkpoint to /x\\n')\n"
        "    os.write(2, b'of a library\\n')\n"
        "    sys.stderr.write('of ours, without an end of line')"
    )
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    told = done.stderr.replace("of a library\n", "", 1)
    assert (done.returncode, told) == (0, "of ours, without an end of line")
    assert told != done.stderr


@pytest.mark.parametrize("words", ["--version", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_of_the_output_is_an_error_of_one_line(words, unbuffered):
    line = f"{sys.executable} -m rl_replicator.cli.main {words} > /dev/full"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
    (told,) = done.stderr.splitlines()
    reason = "[Errno 28] No space left on device"
    assert told == f"rl-replicator: error: cannot write to standard output: {reason}"
    assert done.returncode == 74


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("full", [">", "2>", "&>"])
@pytest.mark.parametrize(("env", "status"), [("cartpole:swingup", 0), ("status", 3)])
def test_a_full_disk_of_the_output_changes_no_status_of_a_training(
    tmp_path, site, env, status, unbuffered, full
):
    line = f"{sys.executable} -m rl_replicator.cli.main train fake --env {env} {full} /dev/full"
    path = os.pathsep.join([str(site), str(ROOT)])
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": unbuffered},
        capture_output=True,
        text=True,
    )
    assert done.returncode == status and "Error" not in done.stderr


def test_another_pipe_that_breaks_is_a_failure(command):
    done = command(*FAKE, "--env", "pipe")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "BrokenPipeError" in done.stderr


def test_exit_status_of_training_is_kept(call):
    done = call(*FAKE, "--env", "status")
    assert (done.returncode, done.stdout) == (3, "about to end\n")


def test_other_failures_show_their_traceback(command):
    done = command(*FAKE, "--env", "crash")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback") and "RuntimeError: something broke" in done.stderr


def test_interrupt_is_quiet(command):
    done = command(*FAKE, "--env", "interrupt")
    assert (done.returncode, done.stderr) == (130, "")


def test_envs(command):
    done = command("envs")
    assert done.returncode == 0
    names = done.stdout.splitlines()
    assert "cartpole:swingup" in names and "quadruped:escape" in names
    assert len(names) == len(set(names)) >= 50
    assert names == sorted(names)
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


def test_a_working_directory_that_was_deleted(monkeypatch, tmp_path, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main.main(["--version"]) == 2
    assert "expected a working directory, but it was deleted" in capsys.readouterr().err


def test_the_working_directory_comes_last(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/elsewhere"])
    main.search_working_directory_last()
    assert sys.path == ["/elsewhere", str(main._ROOT), str(tmp_path)]
    monkeypatch.setattr(sys, "path", ["/bin", str(main._ROOT)])
    main.search_working_directory_last()
    assert sys.path == ["/bin", str(main._ROOT), str(tmp_path)]


def test_libraries_are_configured_before_they_are_imported(monkeypatch):
    for name in ("TF_CPP_MIN_LOG_LEVEL", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    main.configure_libraries()
    import os

    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"


def test_a_failed_node_shows_the_traceback_of_the_node_alone(monkeypatch, capsys):
    def step():
        raise RuntimeError("the environment broke")

    def wait(args):
        try:
            step()
        except RuntimeError as error:
            raise lp.NodeFailedError("actor", 0, ExceptionRecord.of(error)) from error

    monkeypatch.setattr(main, "_run", wait)
    assert main.main(["train"]) == 1
    first, *_, last = lines = capsys.readouterr().err.splitlines()
    assert first.startswith("Traceback") and last == (
        "node actor/0 failed: RuntimeError: the environment broke"
    )
    assert sum("Traceback" in line for line in lines) == 1 and any(", in step" in x for x in lines)
