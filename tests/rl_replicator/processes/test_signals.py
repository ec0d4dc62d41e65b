import os
import signal
import subprocess
import sys
import textwrap
import types

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


@pytest.mark.parametrize(
    ("is_supervised", "sent", "received"),
    [
        # The end of a terminal comes twice.
        (False, [signal.SIGHUP, signal.SIGHUP, None, signal.SIGHUP], [signal.SIGHUP]),
        (False, [signal.SIGHUP, None, signal.SIGINT], [signal.SIGHUP, signal.SIGINT]),
        # GNU `timeout` signals its command, and then the command's group.
        (False, [signal.SIGTERM, signal.SIGTERM, None, signal.SIGTERM], [signal.SIGTERM] * 2),
        # A signal to a job reaches a process directly and through its supervisor.
        (True, [signal.SIGTERM, *signals.ENDING], [signal.SIGTERM]),
    ],
)
def test_not_every_second_signal_is_impatience(monkeypatch, is_supervised, sent, received):
    if is_supervised:
        monkeypatch.setenv(signals.SUPERVISED, "1")
    noted, seconds = [], [1000.0]
    monkeypatch.setattr(signals, "time", types.SimpleNamespace(monotonic=lambda: seconds[0]))

    def arrives(number):
        seconds[0] += 0.1 if number else 0.6
        return number and signals.note(number, noted)

    assert [number for number in sent if arrives(number)] == received == noted


def run(code):
    """Runs code that forks in a process without threads, and returns what it prints."""
    prelude = """
        import os, signal, sys, time
        from rl_replicator.processes import signals

        received = []
        handle = lambda number, _: received.append(number)

        def fork(child, number=None):
            '''Forks, signals where a number is given, and returns how the child ends.'''
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                signal.alarm(60)  # Nothing is left behind if this test fails.
                os.write(writing, b"x")
                child()
                os._exit(0)
            os.read(reading, 1)
            if number:
                os.kill(pid, number)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_a_forked_process_ends_when_it_is_asked_to():
    printed = run("""
        for number in signals.ENDING:
            signal.signal(number, signal.SIG_DFL)
            with signals.handled(handle):
                end = fork(lambda: time.sleep(90), number)
                os.kill(os.getpid(), number)
            print(end == -number, received.pop() == number)
    """)
    assert printed == ["True"] * 6


def test_a_forked_process_handles_signals_as_before():
    printed = run("""
        def handlers():
            return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

        before = [lambda number, _: os._exit(7), signal.SIG_IGN]
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
        signal.signal(signal.SIGHUP, before[1])  # Only SIGINT is taken, twice.
        check = lambda: os._exit(handlers() != before)
        inner = lambda number, _: None
        with signals.handled(handle):
            assert handlers() == [handle, before[1]]
            with signals.handled(inner):
                assert handlers() == [inner, before[1]]
                print(fork(check))
            print(fork(check), fork(lambda: time.sleep(90), signal.SIGINT))
            assert handlers() == [handle, before[1]]
            # A handler that somebody else has put over ours stays.
            other = lambda number, _: os._exit(8)
            signal.signal(signal.SIGINT, other)
            print(fork(lambda: time.sleep(90), signal.SIGINT))
    """)
    assert printed == ["0", "0", "7", "8"]


def test_what_forks_of_a_node_do_is_not_what_others_left():
    printed = run("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signals.override(signal.SIGTERM, handle)
        signals.override(signal.SIGINT, handle)
        os.kill(os.getpid(), signal.SIGTERM)
        as_new = [signal.default_int_handler, signal.SIG_DFL]
        handlers = lambda: [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        print(*received, fork(lambda: os._exit(handlers() != as_new)))
    """)
    assert printed == [str(int(signal.SIGTERM)), "0"]
