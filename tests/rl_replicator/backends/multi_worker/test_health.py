"""How the answers of peers determine which workers are lost."""

import threading
import time

import pytest

from rl_replicator import errors
from rl_replicator.backends.multi_worker import health

ALIVE, UNREACHABLE = health.Answer.ALIVE, health.Answer.UNREACHABLE
SILENT, RESTARTED = health.Answer.SILENT, health.Answer.RESTARTED


class Peers:
    """Two peers whose answers are set by a test."""

    def __init__(self, peer_timeout=1.0):
        self.answers = {1: ALIVE, 3: ALIVE}
        self.losses = []
        self.lost = threading.Event()
        self.monitor = health.Monitor(
            {1: "a:1", 3: "c:3"}, lambda index: self.probe(index), peer_timeout, self.on_loss
        )

    def probe(self, index):
        return self.answers[index]

    def on_loss(self, loss):
        self.losses.append(loss)
        self.lost.set()


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.setattr(health, "_INTERVAL", 0.02)
    peers = Peers()
    yield peers
    peers.monitor.stop()


def test_waits_for_all_to_start(peers):
    peers.answers[3] = UNREACHABLE
    begun = time.monotonic()
    threading.Timer(0.4, peers.answers.update, [{3: ALIVE}]).start()
    peers.monitor.wait_for_all(60)
    assert time.monotonic() - begun > 0.3 and peers.monitor.loss() is None


def test_names_those_that_do_not_start(peers):
    peers.answers[3] = UNREACHABLE
    with pytest.raises(errors.WorkerLost, match=r"but worker 3 \(c:3\) did not within 0.5 s") as e:
        peers.monitor.wait_for_all(0.5)
    assert e.value.workers == (3,)
    peers.answers[1] = SILENT
    with pytest.raises(errors.WorkerLost, match=r"but worker 1 \(a:1\), worker 3 \(c:3\) did not"):
        peers.monitor.wait_for_all(0.5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (UNREACHABLE, r"^worker 1 \(a:1\) is gone: it was killed, crashed, or"),
        (SILENT, r"^worker 1 \(a:1\) has not answered for \d+ s: it is frozen"),
        (RESTARTED, r"^worker 1 \(a:1\) was restarted without the others; end the others"),
    ],
)
def test_says_what_became_of_a_peer(peers, answer, message):
    peers.monitor.wait_for_all(60)
    assert peers.monitor.loss(0.5) is None
    peers.answers[1] = answer
    assert peers.lost.wait(60)
    loss = peers.monitor.loss()
    assert [loss] == peers.losses and loss.workers == (1,)
    with pytest.raises(errors.WorkerLost, match=message):
        raise loss
    assert "\n" not in str(loss)


def test_those_lost_together_are_named_together(peers):
    peers.monitor.wait_for_all(60)
    seen = []

    def probe(index):
        """The first sweep finds worker 3 alone, and the next one finds both."""
        if index == 1:
            return RESTARTED if seen else ALIVE
        seen.append(index)
        return RESTARTED

    peers.probe = probe
    assert peers.lost.wait(60)
    assert peers.losses[0].workers == (1, 3)


def test_the_time_in_which_the_prober_was_frozen_does_not_count(peers, monkeypatch):
    now = [time.monotonic()]
    monkeypatch.setattr(health.time, "monotonic", lambda: now[0])
    peers.answers[1] = SILENT
    for passed, found in ((0.0, []), (12.0, []), (0.5, [1])):
        now[0] += passed
        assert list(peers.monitor._sweep()) == found


def test_a_loss_is_awaited_until_all_peers_have_answered_often(peers):
    probed = []

    def probe(index):
        probed.append(index)
        if index == 3 and len(probed) > 8:  # In the fifth sweep.
            return UNREACHABLE
        return ALIVE

    peers.monitor.wait_for_all(60)
    begun = time.monotonic()
    assert peers.monitor.loss(120.0) is None
    assert time.monotonic() - begun < 60
    peers.probe = probe
    assert peers.monitor.loss(120.0).workers == (3,)


def test_a_hiccup_is_not_a_loss(peers):
    peers.monitor.wait_for_all(60)
    for answer in (UNREACHABLE, SILENT):
        refused = threading.Event()
        questions = []

        def once(index, answer=answer, refused=refused, questions=questions):
            if index == 1 and not refused.is_set():
                refused.set()
                return answer
            questions.append(index)
            return ALIVE

        peers.probe = once
        assert refused.wait(60)
        assert peers.monitor.loss(1.2) is None
        deadline = time.monotonic() + 60
        while len(questions) <= 3 and time.monotonic() < deadline:
            assert peers.monitor.loss(1.2) is None
        assert len(questions) > 3
