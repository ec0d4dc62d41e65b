"""A fault in a user's environment ends `rl-replicator train` with one line."""

import subprocess

import pytest

from tests.suite import forked


@pytest.mark.timeout(300)
@pytest.mark.processes
def test_a_nan_reward_ends_the_run_in_one_line(tmp_path):
    command = [*forked.python(), "-m", "rl_replicator.cli.main", "train", "d4pg"]
    command += ["--env", "tests.environments.test_timesteps:faulty", "--steps", "500"]
    done = subprocess.run(
        [*command, "--run-dir", str(tmp_path / "run")], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "rl-replicator: error: tests.environments.test_timesteps:faulty: reward at step 3 of the "
        "episode: expected a finite float32 number, got nan; clip it"
    )
