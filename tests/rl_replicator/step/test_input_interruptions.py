"""What other threads, signals and interrupts may do to an input, at the worst moments."""

import concurrent.futures
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
