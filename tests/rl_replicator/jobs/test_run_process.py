"""The processes of training runs."""

import signal
import time

import pytest

from rl_replicator.jobs import run_process


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
    process = run_process.RunProcess(command, log, run_process.Slot())
    try:
        while process.poll() is None:
            time.sleep(0.01)
        assert process.reason() == f"{reason} ({log})"
    finally:
        process.kill()
