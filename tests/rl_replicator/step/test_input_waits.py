"""The seconds that steps have waited for input."""

import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr

NAMES = ("single_device", "multi_device:2")


def generated(numbers):
    """An `input_fn` whose dataset has the numbers of a generator function."""
    return lambda context: tf.data.Dataset.from_generator(
        numbers, output_signature=tf.TensorSpec([], tf.int64)
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pad_to", [None, 1])
def test_the_wait_for_a_slow_dataset(name, pad_to):
    replicator = rr.make(name)
    count, seconds = 8, 0.05

    def numbers():
        for i in range(100):
            time.sleep(seconds)
            yield i

    def input_fn(context):
        data = generated(numbers)(context)
        return data.batch(1) if pad_to else data

    inputs = replicator.make_inputs(input_fn, pad_to=pad_to)
    step = replicator.replicate(lambda x: x, inputs, steps_per_call=count)
    started = time.time()
    step()
    elapsed = time.time() - started
    # A step that a busy machine delays finds rows that were read ahead.
    least = 0.3 * count * seconds * replicator.num_replicas
    assert least < inputs.seconds_waited < elapsed
    inputs.close()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps_per_call", [None, 2])
def test_rows_that_are_ready_are_not_waited_for(name, steps_per_call):
    """However slow the step is, and whether or not the process gets a processor."""
    replicator = rr.make(name)
    requested, has_moved = [0], threading.Condition()

    def numbers():
        for i in range(100):
            with has_moved:
                requested[0] = i  # All rows before it are in the queue.
                has_moved.notify_all()
            yield i

    inputs = replicator.make_inputs(generated(numbers))

    def step_fn(x):
        # What another thread sees while the step computes.
        seen = tf.numpy_function(lambda: np.float64(inputs.seconds_waited), [], tf.float64)
        return x, tf.ensure_shape(seen, [])

    step = replicator.replicate(step_fn, inputs, steps_per_call)
    step()  # Waits for the first row.
    waited = inputs.seconds_waited
    assert 0 <= waited < 90
    for _ in range(4):
        end = (inputs.position + (steps_per_call or 1)) * replicator.num_replicas
        with has_moved:
            assert has_moved.wait_for(lambda end=end: requested[0] >= end, 60)
        _, seen = replicator.gather(step())
        assert set(seen.ravel().tolist()) == {waited}
        assert inputs.seconds_waited == waited
    inputs.close()


def test_inputs_without_a_queue_are_not_waited_for():
    replicator = rr.SingleDeviceReplicator()
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1))
    replicator.replicate(lambda x: x, inputs)()
    assert inputs.seconds_waited == 0
