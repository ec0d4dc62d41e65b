"""Fixtures that run the command line, in this process or in its own."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_replicator.cli import main
from tests.distributions import install

ROOT = Path(__file__).parents[2]
# The tests of other packages may have set these.
CHOSEN_BY_MAIN = ("TF_CPP_MIN_LOG_LEVEL", "GRPC_VERBOSITY", "MUJOCO_GL")


@pytest.fixture
def distribution(tmp_path):
    """Fakes installed distributions: `distribution(name, version, entry_points)`."""
    make = functools.partial(install, tmp_path / "site")
    make.site = tmp_path / "site"
    return make


@pytest.fixture
def site(distribution):
    """A folder of installed distributions that registers the tests' own trainable."""
    group = "[rl_replicator.trainables]\nfake = tests.cli.trainable_fake:fake\n"
    group += "[rl_replicator.commands]\ngone = agents.cli.gone:run\n"
    distribution("tests-of-rl-replicator", "1.0", group)
    return distribution.site


@pytest.fixture
def command(tmp_path, site):
    """Runs `rl-replicator WORDS` in an empty directory, with the tests' own trainable."""
    inherited = {key: value for key, value in os.environ.items() if key not in CHOSEN_BY_MAIN}

    def run(*words, preexec_fn=None, **environment):
        return subprocess.run(
            [sys.executable, "-m", "rl_replicator.cli.main", *map(str, words)],
            cwd=tmp_path,
            preexec_fn=preexec_fn,
            env={
                **inherited,
                "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


@pytest.fixture
def call(site, monkeypatch, tmp_path, capsys):
    """Like `command`, but in this process: a new interpreter costs half a second of CPU time."""
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)

    def run(*words):
        try:
            status = main.main([str(word) for word in words])
        except SystemExit as end:  # After a command's --help.
            status = end.code or 0
        return subprocess.CompletedProcess(words, status, *capsys.readouterr())

    return run
