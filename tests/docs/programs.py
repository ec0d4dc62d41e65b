"""Runs programs of the documentation."""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[2]


def output(*command, cwd=None, **environment):
    """Runs a command that can import this project; returns what it prints."""
    own = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", **environment}
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=400,  # It takes seconds alone, but minutes beside other tests.
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout
