"""Commands that train run with the chosen allocator."""

import os
import subprocess
import sys

import pytest

from rl_replicator.processes import allocator

# Prints the command's process id, allocator and arguments instead of running the command.
PROGRAM = """
import os, sys
from rl_replicator.cli import main
def report(args):
    maps = open("/proc/self/maps").read()
    print(os.getpid(), "libjemalloc" in maps, args, *sys.orig_argv[1:2])
    return 0
main._run = report
sys.exit(main.main())
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
    if process.returncode:
        return process.returncode
    pid, has_jemalloc, rest = output.strip().split(" ", 2)
    assert int(pid) == process.pid  # A supervisor watches this process.
    return has_jemalloc == "True", rest


JEMALLOC = {allocator.VARIABLE: "jemalloc"}


def test_a_command_that_trains_has_jemalloc():
    words = ("train", "d4pg", "--env", "a b")
    assert start(*words, **JEMALLOC) == (True, "['train', 'd4pg', '--env', 'a b'] -P")
    assert start(*words) == (False, "['train', 'd4pg', '--env', 'a b'] -P")


def test_other_commands_start_at_once():
    assert start("plot", "runs/1", **JEMALLOC) == (False, "['plot', 'runs/1'] -P")


def test_an_unknown_allocator_is_bad_input():
    assert start("train", **{allocator.VARIABLE: "nothing"}) == 2


def test_a_library_that_is_preloaded_is_kept():
    assert allocator.environment({**JEMALLOC, "LD_PRELOAD": "libother.so"}) == {}


def test_calls_from_python_do_not_start_again(monkeypatch):
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    monkeypatch.setenv(allocator.VARIABLE, "jemalloc")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    from rl_replicator.cli import main

    assert main.main(["train", "nothing-like-this"]) == 2


def test_nothing_is_preloaded_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(allocator, "library", lambda: None)
    assert allocator.environment(JEMALLOC) == {}
    monkeypatch.setattr(allocator, "library", lambda: tmp_path / "a b" / "libjemalloc.so")
    assert allocator.environment(JEMALLOC) == {}  # The linker would look for two files.
