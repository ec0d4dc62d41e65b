import os
import signal

import pytest

from rl_replicator.processes import signals


@pytest.fixture
def handlers():
    """Sets handlers until the end of the test."""
    before = {number: signal.getsignal(number) for number in signals.ENDING}

    def set_(at_int, at_term=signal.SIG_DFL):
        signal.signal(signal.SIGINT, at_int)
        signal.signal(signal.SIGTERM, at_term)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)

    yield set_
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


def test_signals_are_handled_inside(handlers):
    outside, inside = [], []
    former = lambda number, _: outside.append(number)  # noqa: E731 - compared below.
    handlers(former, former)
    with pytest.raises(LookupError), signals.handled(lambda number, _: inside.append(number)):
        send(signal.SIGINT)
        send(signal.SIGTERM)
        send(signal.SIGINT)
        raise LookupError
    assert inside == [signal.SIGINT, signal.SIGTERM, signal.SIGINT] and outside == []
    assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == former


def test_an_ignored_sigint_stays_ignored_and_sigterm_works(handlers):
    handlers(signal.SIG_IGN)
    received = []
    with signals.handled(lambda number, _: received.append(number)):
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        send(signal.SIGINT)
        send(signal.SIGTERM)
    assert received == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_over_this_one_stays(handlers):
    handlers(signal.default_int_handler)
    over = lambda number, _: None  # noqa: E731 - compared below.
    with signals.handled(lambda number, _: None):
        signal.signal(signal.SIGINT, over)
    assert signal.getsignal(signal.SIGINT) == over
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_handler_is_taken_once(handlers):
    handlers(signal.default_int_handler)
    handler = lambda number, _: None  # noqa: E731 - compared below.
    before = signals.take(handler)
    assert before == {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    assert signals.take(handler) == {}
    signals.give_back(handler, before)
    assert before == {} and signal.getsignal(signal.SIGINT) == signal.default_int_handler


def test_the_end_of_a_terminal_is_no_impatience():
    received = []
    assert signals.note(signal.SIGHUP, received)
    assert not signals.note(signal.SIGHUP, received)
    assert signals.note(signal.SIGINT, received)
    assert received == [signal.SIGHUP, signal.SIGINT]
