"""The script for bash is run by bash; the one for zsh is compared with it."""

import re
import subprocess

import pytest

from rl_replicator.cli import main

# Prints what the shell offers, given the script and the words of an unfinished command.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_rl_replicator
echo "${COMPREPLY[*]}"
"""


@pytest.fixture
def script(call, tmp_path):
    """Makes the script of a shell; returns its path."""

    def make(shell):
        done = call("--print-completion", shell)
        assert (done.returncode, done.stderr) == (0, "")
        path = tmp_path / f"completion.{shell}"
        path.write_text(done.stdout)
        return path

    return make


def test_bash_completes(script):
    path = script("bash")

    def offered(*words):
        shell = ["bash", "--norc", "-euc", COMPLETE, "bash", str(path), "rl-replicator", *words]
        done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.stdout.split()

    assert {*main.COMMANDS, "envs", "video", "--version"} <= {*offered("")}
    assert offered("ex") == ["export"]
    assert "fake" in offered("train", "")
    assert offered("train", "fake", "--agent.lea") == ["--agent.learning-rate"]
    assert offered("train", "fake", "--env", "x", "--ste") == ["--steps"]
    assert offered("plot", "runs/a", "--fig") == ["--figure"]
    assert offered("eval", "runs/a", "--epi") == ["--episodes"]


def test_zsh_has_the_same_words(script):
    bash, zsh = (script(shell).read_text() for shell in ("bash", "zsh"))
    assert re.findall(r"words=.*", bash) == re.findall(r"words=\"[^$].*", zsh)[-bash.count(";;") :]
    assert zsh.startswith("#compdef rl-replicator\n")


@pytest.mark.parametrize("words", [(), ("fish",)])
def test_other_shells(words, capsys):
    assert main.main(["--print-completion", *words]) == 2
    assert "expected bash or zsh after --print-completion, got " in capsys.readouterr().err
