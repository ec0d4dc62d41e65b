"""A run whose environment fails."""

import subprocess

import pytest

from rl_replicator.cli import main
from tests.suite import forked

SMALL = ("--agent.policy-layers", "8", "--agent.critic-layers", "8", "--steps", "500")


@pytest.mark.timeout(300)
def test_a_nan_reward_ends_the_run_in_one_line(tmp_path, capsys):
    env = "tests.environments.test_timesteps:faulty"
    words = ["train", "d4pg", "--env", env, *SMALL, "--run-dir", str(tmp_path / "run")]
    assert main.main(words) == 2
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert told.splitlines()[-1] == (
        f"rl-replicator: error: {env}: reward at step 3 of the episode: expected a finite float32 "
        "number, got nan; clip it"
    )


@pytest.mark.timeout(300)
def test_an_exception_of_an_environment_ends_the_run_with_its_traceback(tmp_path, capsys):
    words = ["train", "d4pg", "--env", "tests.environments.faulty:crash", *SMALL]
    assert main.main([*words, "--run-dir", str(tmp_path / "run")]) == 1
    told = capsys.readouterr().err
    assert "in crash" in told or "faulty.py" in told
    assert "node actor/0 failed: AttributeError" in told.splitlines()[-1]
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
