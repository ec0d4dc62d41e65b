"""The live page: on loopback, up to date, and the only thing that is served."""

import http.client
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agents.cli import watch
from agents.reports import live, reading
from agents.reports.live import LivePage, LiveServer
from rl_replicator.errors import UsageError
from rl_replicator.runs.metrics import MetricWriter

ROOT = Path(__file__).parents[3]


@pytest.fixture
def ask(make_run):
    """A function that requests a path, with the attributes `run` and `server`."""
    run = make_run("one", {100: 12.0})
    with LiveServer(LivePage([run], None, 1e6), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()

        def get(path="/", method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            connection.putrequest(method, path, skip_host="Host" in headers)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            answer = connection.getresponse()
            text = answer.read().decode()
            connection.close()
            return answer.status, text, answer.headers

        get.run, get.server = run, server
        yield get
        server.shutdown()
        thread.join()


def test_it_follows_the_run(ask):
    status, text, headers = ask()
    assert status == 200 and 'data-refresh="2000"' in text
    assert re.search(r"<b>12\.0</b>", text)
    assert int(headers["Content-Length"]) == len(text.encode())
    # Only the head if nothing has changed; a minute may have passed in between.
    status, text, again = ask(If_None_Match=headers["ETag"])
    assert (status, text) == (304, "") or again["ETag"] != headers["ETag"]
    writer = MetricWriter(ask.run, "environment_steps")
    writer.write("evaluator", 150, {"episode_return": 34.0})
    writer.close()
    deadline = time.monotonic() + 60
    while not re.search(r"<b>34\.0</b>", ask(If_None_Match=headers["ETag"])[1]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert ask(method="HEAD")[:2] == (200, "")


def test_a_page_that_takes_a_second_is_made_every_eleven(make_run, monkeypatch):
    now, made, run = [100.0], [], make_run("one", {100: 12.0})

    def read(*args, real=reading.read):
        now[0] += 1.0
        made.append(now[0])
        return real(*args)

    monkeypatch.setattr(live.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(live.reading, "read", read)
    page = LivePage([run], None, 1e6)
    writer = MetricWriter(run, "environment_steps")
    for step in range(200, 220):  # Each request finds new rows.
        page.get()
        writer.write("evaluator", step, {"episode_return": 34.0})
        now[0] += 2.0
    writer.close()
    assert made == [101.0, 112.0, 123.0, 134.0]


def test_nothing_else_is_served(ask):
    (ask.run.parent / "secret").write_text("secret")
    for path in ("/config.json", "/../secret", "/%2e%2e/secret", "//etc/passwd", "*"):
        assert ask(path)[:2] == (404, "there is one page, at /\n")
    assert ask(method="POST")[0] == 501
    assert ask(Host="attacker.example")[0] == 403
    assert ask(Host="127.0.0.1.attacker.example:80")[0] == 403
    # Without a port (that is, 80), through a tunnel, and in capitals.
    for host in ("127.0.0.1", "127.0.0.1:9000", f"LocalHost:{ask.server.port}"):
        assert ask(Host=host)[0] == 200
    assert ask.server.server_address[0] == "127.0.0.1"


def test_a_run_that_breaks_or_begins_is_no_error(ask):
    for file in (ask.run / "metrics").iterdir():
        file.unlink()
    status, text, _ = ask()
    assert status == 200 and "Waiting for metrics" in text and "it has no metrics yet" in text


def test_a_taken_port_and_a_missing_run(ask, tmp_path):
    port = str(ask.server.port)
    with pytest.raises(UsageError, match=rf"--port: expected a free port, got {port} \(Address al"):
        watch.run([str(ask.run), "--port", port])
    with pytest.raises(UsageError, match="expected the directory of a run, but there is no "):
        watch.run([str(tmp_path / "none")])


@pytest.mark.processes
def test_ctrl_c_ends_it(make_run):
    code = "import sys; from agents.cli import watch; sys.exit(watch.run(sys.argv[1:]))"
    words = [sys.executable, "-c", code, str(make_run("one", {100: 1.0})), "--port", "0"]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/ \(Ctrl-C ends it\)\n", line)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out.strip(), err) == (0, "", "")
