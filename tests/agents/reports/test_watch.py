"""The live page: on loopback, up to date, and the only thing that is served."""

import contextlib
import http.client
import re
import signal
import subprocess
import sys
import time

import pytest

from agents.cli import watch
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import MetricWriter

CODE = "import sys; from agents.cli import watch; sys.exit(watch.run(sys.argv[1:]))"


@pytest.fixture
def process():
    """A function that starts a watch, which does not outlive the test."""
    with contextlib.ExitStack() as stack:

        def start(*words):
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            command = [sys.executable, "-c", CODE, *words]
            started = subprocess.Popen(command, text=True, **pipes)
            stack.callback(started.communicate)
            stack.callback(started.kill)
            return started

        yield start


@pytest.mark.processes
def test_it_follows_the_run_and_serves_nothing_else_until_ctrl_c(make_run, process):
    run = make_run("one", {100: 12.0})
    watching = process(str(run), "--port", "0", "--refresh", "0.2")
    line = watching.stdout.readline()
    port = int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/ \(Ctrl-C ends it\)\n", line)[1])

    def get(path="/", host="localhost:9000"):  # The port of a tunnel.
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    status, text = get()
    assert status == 200 and "<b>12</b>" in text
    assert '<meta http-equiv="refresh" content="0.2">' in text
    for path in ("/config.json", "/../one/config.json", "/%2e%2e/one/config.json"):
        assert get(path)[0] == 404
    for host in ("attacker.example", "127.0.0.1.attacker.example:80"):
        assert get(host=host)[0] == 403
    writer = MetricWriter(run, "environment_steps")
    writer.write("evaluator", 150, {"episode_return": 34.0})
    writer.close()
    deadline = time.monotonic() + 60
    while "<b>34</b>" not in get()[1]:
        assert time.monotonic() < deadline
    for file in (run / "metrics").iterdir():
        file.unlink()
    while "Waiting for metrics" not in get()[1]:
        assert time.monotonic() < deadline
    with pytest.raises(UsageError, match=rf"--port: expected a free port, got {port} \(Addre"):
        watch.run([str(run), "--port", str(port)])
    watching.send_signal(signal.SIGINT)
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, out.strip(), err) == (0, "", "")


def test_a_missing_run(tmp_path):
    with pytest.raises(UsageError, match="expected the directory of a run, but there is no "):
        watch.run([str(tmp_path / "none")])
