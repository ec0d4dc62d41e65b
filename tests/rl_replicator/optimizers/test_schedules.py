"""Learning rates, at steps worked out by hand."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator.optimizers import schedules


def at(schedule, *steps):
    return [float(schedule(tf.constant(step, tf.int64))) for step in steps]


@pytest.mark.parametrize(("batch", "rate"), [(256, 0.1), (128, 0.05), (8192, 3.2)])
def test_linear_scaling(batch, rate):
    assert schedules.scaled(0.1, batch) == pytest.approx(rate)


def test_cosine():
    # After a third, at 60 degrees: (1 + 1/2) / 2; in the middle, half; from the end on, 0.
    schedule = schedules.cosine(0.4, first_step=10, last_step=40)
    np.testing.assert_allclose(
        at(schedule, 10, 20, 25, 40, 99), [0.4, 0.3, 0.2, 0.0, 0.0], atol=1e-7
    )


def test_cosine_in_no_steps_ends_after_its_first():
    np.testing.assert_allclose(
        at(schedules.cosine(0.4, first_step=5, last_step=5), 0, 5, 6), [0.4, 0.4, 0.0], atol=1e-7
    )


def test_stairs():
    schedule = schedules.stairs(2.0, [3, 6])
    np.testing.assert_allclose(at(schedule, 0, 2, 3, 5, 6, 100), [2, 2, 0.2, 0.2, 0.02, 0.02])


def test_warm_up():
    # At the end of the rise, the rate is already the other schedule's.
    schedule = schedules.warm_up(0.8, 4, schedules.stairs(0.5, [6]))
    np.testing.assert_allclose(at(schedule, 0, 1, 3, 4, 5, 6), [0, 0.2, 0.6, 0.5, 0.5, 0.05])


def test_no_warm_up():
    np.testing.assert_allclose(at(schedules.warm_up(0.8, 0, schedules.stairs(0.8, [])), 0), [0.8])
