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
    # It ended before the first regular save, but was saved.
    assert any((tmp_path / "run" / "checkpoints").glob("*_step_*"))


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_an_environment_that_hangs_ends_a_run_in_threads_in_one_line(tmp_path):
    command = [*forked.python(), "-m", "rl_replicator.cli.main", "train", "d4pg", "--steps", "500"]
    command += ["--env", "tests.environments.faulty:hang", "--env-timeout", "5"]
    command += ["--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "rl-replicator: error: actor 0: tests.environments.faulty:hang: step 3 of the episode has "
        "not returned for 5 s ("
    )
    assert "faulty.py:" in last and last.endswith("or allow more time with --env-timeout")
