"""Calls of steps, direct and in the background, run one after the other."""

import gc
import itertools
import os
import subprocess
import threading
import time

import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.checkpoints import parts
from rl_replicator.checkpoints.parts import VariableValues
from rl_replicator.step import call_order
from tests.suite import forked
from tests.waiting import wait_until


def test_steps_in_the_background_keep_their_order():
    replicator = rr.make("multi_device:2")
    release = threading.Event()

    def numbers():
        for i in itertools.count():  # On a busy machine, many steps are taken before `cancel` acts.
            if i == 4:
                release.wait(60)
            yield i

    data = tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64))
    inputs = replicator.make_inputs(lambda context: data)
    plus = replicator.replicate(lambda x: x, inputs)
    minus = replicator.replicate(lambda x: -x, inputs)
    futures = [plus.begin(), minus.begin()]
    assert [replicator.gather(f.result(60)).tolist() for f in futures] == [[0, 1], [-2, -3]]
    futures = [plus.begin(), minus.begin()]  # Both wait for data without blocking us.
    assert not futures[0].done()
    threading.Timer(0.2, release.set).start()
    futures.append(plus.begin())  # Blocks: there is room for two.
    assert futures[0].done()
    results = [replicator.gather(f.result(60)).tolist() for f in futures]
    assert results == [[4, 5], [-6, -7], [8, 9]]
    plus.cancel()
    with pytest.raises(rr.StepCancelled):
        while True:
            plus.begin().result(60)


def test_direct_calls_wait_for_those_in_the_background():
    """Two concurrent steps would read the same value, and one of their updates would be lost."""
    replicator = rr.make("single_device")
    with replicator.scope():
        count = tf.Variable(0, trainable=False)

    def slow(x):
        before = count.read_value()
        with tf.control_dependencies([before]):
            wait = tf.py_function(lambda: time.sleep(0.2), [], [])
        with tf.control_dependencies([wait]):
            count.assign(before + 1)
        return before

    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    step = replicator.replicate(slow, inputs)
    other = replicator.replicate(lambda x: count.assign_add(1), inputs)
    future = step.begin()
    assert int(other()) == 2
    assert int(future.result(60)) == 0
    results = []
    threads = [threading.Thread(target=lambda: results.append(int(step()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [2, 3]


def make_slow_step(replicator):
    """A step that changes one variable, waits, and changes another one."""
    with replicator.scope():
        first, second = (tf.Variable(0, trainable=False) for _ in range(2))
    entered, release = threading.Event(), threading.Event()

    def hold():
        entered.set()
        release.wait(60)

    def step_fn(x):
        with tf.control_dependencies([first.assign_add(1)]):
            wait = tf.py_function(hold, [], [])
        with tf.control_dependencies([wait]):
            second.assign_add(1)
        return x

    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    step = replicator.replicate(step_fn, inputs)
    return step, rr.parts.TrackablePart(first=first, second=second), entered, release


@pytest.mark.parametrize(("method", "in_background"), [("save", True), ("begin_save", False)])
def test_a_checkpoint_holds_whole_calls(tmp_path, monkeypatch, caplog, method, in_background):
    """It waits for them, and says so if that takes long."""
    monkeypatch.setattr(call_order, "_NOTICE_SECONDS", 0.1)
    step, part, entered, release = make_slow_step(rr.make("single_device"))
    call = step.begin if in_background else threading.Thread(target=step).start
    call()
    assert entered.wait(60)
    told = "a checkpoint waits for a step that another thread takes"

    def release_once_told():
        wait_until(lambda: told in caplog.text)
        release.set()

    threading.Thread(target=release_once_told).start()
    checkpointer = rr.checkpoints.Checkpointer(tmp_path)
    getattr(checkpointer, method)(1, {"variables": part})
    info = checkpointer.wait() or checkpointer.latest()
    assert VariableValues.read(info.path / "variables") == {"first": 1, "second": 1}
    assert caplog.text.count(told) == 1


def test_a_checkpoint_of_another_thread_does_not_wait_for_direct_calls(tmp_path):
    """The steps of a learner may wait for data while the counter saves in the same process."""
    step, _, entered, release = make_slow_step(rr.make("single_device"))
    thread = threading.Thread(target=step)
    thread.start()
    assert entered.wait(60)
    count = parts.JsonPart(lambda: 3, print)
    rr.checkpoints.Checkpointer(tmp_path).save(1, {"count": count})
    assert thread.is_alive() and not release.is_set()
    release.set()
    thread.join(60)


def test_a_call_that_fails_or_is_dropped_ends_its_turn():
    replicator = rr.make("single_device")
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    step = replicator.replicate(lambda x: x, inputs)
    entered, release = threading.Event(), threading.Event()

    def hold():
        entered.set()
        release.wait(60)
        raise KeyError("of the user")

    future = replicator.begin(hold, release.set)
    assert entered.wait(60)
    dropped = replicator.begin(step, step.cancel)
    assert dropped.cancel()  # It still has its turn, in which nothing happens.
    release.set()
    with pytest.raises(KeyError, match="of the user"):
        future.result(60)
    assert int(step()) == 1


def test_a_function_in_the_background_calls_steps_directly():
    replicator = rr.make("single_device")
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    step = replicator.replicate(lambda x: x, inputs)
    assert int(replicator.begin(step, step.cancel).result(60)) == 1
    # Waiting for a call that begins only after this function has ended would never return.
    with pytest.raises(rr.ConfigError, match="call the step itself"):
        replicator.begin(lambda: step.begin().result(60), step.cancel).result(90)
    assert int(step.begin().result(60)) == 1
    # A callback of a call may begin the next one: the first call is over by then.
    ended = threading.Event()
    step.begin().add_done_callback(lambda _: step.begin().add_done_callback(lambda _: ended.set()))
    assert ended.wait(60)


def test_the_thread_of_calls_in_the_background_ends_with_its_replicator():
    before = set(threading.enumerate())

    def begin():
        replicator = rr.make("single_device")
        return replicator.begin(threading.current_thread, print).result(60)

    thread = begin()
    assert thread not in before
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


EXITING = """
import itertools, threading
import rl_replicator as rr
import tensorflow as tf

replicator = rr.make("single_device")
never, waits = threading.Event(), threading.Event()
data = tf.data.Dataset.from_generator(
    lambda: (waits.set() or never.wait() for _ in itertools.count()),
    output_signature=tf.TensorSpec([], tf.bool),
)
inputs = replicator.make_inputs(lambda context: data)
step = replicator.replicate(lambda x: x, inputs)
futures = [step.begin(), step.begin()]
# TensorFlow aborts a process that exits while one of its threads calls Python.
waits.wait()
raise KeyError("of the user")
"""


@pytest.mark.processes
def test_pending_calls_do_not_hold_up_the_exit():
    done = subprocess.run(
        [*forked.python(), "-c", EXITING],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr[-2000:]
    assert "KeyError: 'of the user'" in done.stderr
