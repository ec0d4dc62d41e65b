"""Commands that train run with jemalloc."""

import os
import subprocess
import sys

import pytest

from rl_replicator.processes import allocator

# Prints what the command's process has, before it parses its options.
PROGRAM = """
import os, sys
from rl_replicator.cli import main
def report(args):
    maps = open("/proc/self/maps").read()
    print(os.getpid(), "libjemalloc" in maps, args, *sys.orig_argv[1:2])
    return 0
main._run = report
main.main()
"""


def start(*arguments, **variables):
    environment = {**os.environ, allocator.VARIABLE: "", "LD_PRELOAD": "", **variables}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    pid, has_jemalloc, rest = output.strip().split(" ", 2)
    assert int(pid) == process.pid  # A supervisor watches it.
    return has_jemalloc == "True", rest


def test_a_command_that_trains_has_jemalloc():
    assert start("train", "d4pg", "--env", "a b") == (True, "['train', 'd4pg', '--env', 'a b'] -P")


def test_other_commands_start_at_once():
    assert start("plot", "runs/1") == (False, "['plot', 'runs/1'] -P")


def test_the_users_choice_is_kept():
    assert start("train", **{allocator.VARIABLE: "system"})[0] is False
    other = "libSegFault.so"
    assert allocator.environment({"LD_PRELOAD": other}) == {}


def test_calls_from_python_do_not_start_again(monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    monkeypatch.delenv(allocator.VARIABLE, raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    from rl_replicator.cli import main

    assert main.main(["train", "nothing-like-this"]) == 2


def test_nothing_is_preloaded_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(allocator, "library", lambda: None)
    assert allocator.environment({}) == {}
    monkeypatch.setattr(allocator, "library", lambda: tmp_path / "a b" / "libjemalloc.so")
    assert allocator.environment({}) == {}  # The linker would look for two files.
