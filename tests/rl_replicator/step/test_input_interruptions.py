"""What other threads, signals and interrupts may do to an input, at the worst moments."""

import concurrent.futures
import contextlib
import gc
import threading
import time

import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.step.inputs import pump as pump_lib


def make(data):
    replicator = rr.SingleDeviceReplicator()
    inputs = replicator.make_inputs(lambda context: data)
    return inputs, replicator.replicate(lambda x: x, inputs)


def pumps_since(before):
    return [t for t in set(threading.enumerate()) - before if t.name == "input-pump"]


def empty():
    """Returns data that waits for the elements of an empty queue, and the queue."""
    source = tf.queue.FIFOQueue(10, tf.int64)
    return tf.data.Dataset.range(10).map(lambda _: source.dequeue()), source


def test_a_step_that_begins_in_the_middle_of_a_restart_gets_the_first_row(monkeypatch):
    inputs, step = make(tf.data.Dataset.range(100))
    assert int(step()) == 0
    # Patches the object, not the class: a function that is taken out of a class may be called once
    # more while what it refers to, and with it the input, is freed.
    pump, calls = inputs._pump, []
    close = pump.close

    def close_and_begin():
        close()
        if not calls:
            calls.append(step.begin())
            time.sleep(0.5)  # Until it waits for a row, if it does not wait for the restart.

    monkeypatch.setattr(pump, "close", close_and_begin)
    inputs.restart()
    assert int(calls[0].result(60)) == 0
    assert int(step()) == 1
    inputs.close()


def test_a_step_gets_rows_if_the_input_is_restarted_just_after_it_was_started(monkeypatch):
    inputs, step = make(tf.data.Dataset.range(100))
    assert int(step()) == 0
    start, others = inputs.start, [inputs.restart]

    def start_and_restart():
        start()
        if others:
            other = threading.Thread(target=others.pop())
            other.start()
            other.join(5)  # It waits if the lock is held.

    monkeypatch.setattr(inputs, "start", start_and_restart)
    with contextlib.suppress(rr.StepCancelled):  # Restarted a moment later.
        assert int(step.begin().result(60)) in (0, 1)
    inputs.close()


def test_one_input_that_cannot_be_closed_leaves_the_others(caplog):
    def fail():
        raise RuntimeError("no such device")

    data, source = empty()
    before = set(threading.enumerate())
    inputs, step = make(data)
    source.enqueue(5)
    assert int(step()) == 5
    (pump,) = pumps_since(before)
    pump_lib._closing().put(fail)
    del inputs, step
    gc.collect()
    pump.join(60)
    assert not pump.is_alive()
    assert "could not be closed" in caplog.text and "no such device" in caplog.text
    source.close()


def test_a_wait_that_ends_slowly_holds_up_no_other_input(monkeypatch):
    release = threading.Event()
    slow, slow_step = make(tf.data.Dataset.range(100))
    slow_step()
    monkeypatch.setattr(slow._pump, "_stop", tf.queue.FIFOQueue(1, [tf.bool]))
    monkeypatch.setattr(slow._pump._stop, "close", lambda *_: release.wait(60))
    data, source = empty()
    before = set(threading.enumerate())
    other, step = make(data)
    source.enqueue(5)
    assert int(step()) == 5
    (pump,) = pumps_since(before)
    slow.close()
    del other, step
    gc.collect()
    pump.join(30)
    ended = not pump.is_alive()
    release.set()
    assert ended
    source.close()


def test_closing_in_the_middle_of_tracing_closes_now():
    """A signal handler may do this."""
    data, source = empty()
    before = set(threading.enumerate())
    inputs, step = make(data)
    waiting = step.begin()
    with pytest.raises(concurrent.futures.TimeoutError):
        waiting.result(0.5)
    (pump,) = pumps_since(before)

    @tf.function
    def trace(x):
        inputs.close()
        return x + 1

    graph = trace.get_concrete_function(tf.constant(1)).graph
    assert not [op for op in graph.get_operations() if "Queue" in op.type]
    with pytest.raises(rr.EndOfData, match="closed"):
        waiting.result(60)
    pump.join(60)
    assert not pump.is_alive()
    source.close()


def test_closing_an_input_that_starts_ends_its_thread(monkeypatch):
    """A signal handler runs in the thread that starts it."""
    data, source = empty()
    before = set(threading.enumerate())
    inputs, step = make(data)
    monkeypatch.setattr(inputs._rows, "clear", inputs.close)
    with pytest.raises(rr.EndOfData, match="closed"):
        step.begin().result(60)
    for pump in pumps_since(before):
        pump.join(60)
        assert not pump.is_alive()
    source.close()


@pytest.mark.parametrize("has_started", [False, True])
def test_an_interrupt_while_the_thread_is_started_loses_no_row(monkeypatch, has_started):
    inputs, step = make(tf.data.Dataset.range(100))
    start = pump_lib.Pump.start

    def interrupted(pump, position):
        monkeypatch.undo()
        if has_started:
            start(pump, position)
            time.sleep(0.3)  # It reads rows ahead.
        raise KeyboardInterrupt

    monkeypatch.setattr(pump_lib.Pump, "start", interrupted)
    step.cancel()
    with pytest.raises(KeyboardInterrupt):
        step()
    with pytest.raises(rr.StepCancelled):
        step()
    assert [int(step()) for _ in range(4)] == [0, 1, 2, 3]
    assert inputs.position == 4
    inputs.close()
