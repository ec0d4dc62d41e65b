"""The processes of training runs."""

import signal

import pytest

from rl_replicator.experiments.run_process import RunProcess


@pytest.mark.parametrize(
    ("last_words", "reason"),
    [
        ("exit 3", "ended with status 3: done"),
        ("kill -KILL $$", "was killed by SIGKILL: done"),
        (f"kill -{signal.SIGRTMIN + 1} $$", f"was killed by signal {signal.SIGRTMIN + 1}: done"),
        ("rm LOG; exit 3", "ended with status 3: no output"),
    ],
)
def test_the_reason_of_an_end(tmp_path, last_words, reason):
    log = tmp_path / "log"
    command = ["bash", "-c", f"echo done; {last_words.replace('LOG', str(log))}"]
    process = RunProcess(command, log)
    process.wait()
    assert process.reason() == f"{reason} ({log})"
