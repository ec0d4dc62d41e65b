"""A run whose environment fails."""

import subprocess

import pytest

from tests.suite import forked


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_an_exception_of_an_environment_ends_the_run_with_its_traceback(tmp_path):
    command = [*forked.python(), "-m", "rl_replicator.cli.main", "train", "d4pg", "--steps", "500"]
    command += ["--env", "tests.environments.faulty:crash", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 1, done.stderr
    assert "in crash" in done.stderr or "faulty.py" in done.stderr
    assert "node actor/0 failed: AttributeError" in done.stderr.splitlines()[-1]
