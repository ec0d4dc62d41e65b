"""Measures over tasks and seeds, worked out by hand."""

import numpy as np
import pytest

from rl_replicator.runs import statistics


def test_every_task_has_the_same_weight():
    scores = [np.array([10.0, 20.0, 30.0]), np.array([100.0])]
    assert statistics.mean(scores) == 60.0
    # Weights 1/6, 1/6, 1/6 and 1/2: of the middle half, the first quarter holds 1/12 of 20 and 1/6
    # of 30, the second one 1/4 of 100.
    expected = (20 / 12 + 30 / 6 + 100 / 4) / 0.5
    assert statistics.interquartile_mean(scores) == pytest.approx(expected)


def test_the_interquartile_mean_is_the_trimmed_mean():
    scores = [*np.random.default_rng(0).uniform(0, 1000, [8, 3])]
    half = np.sort(np.concatenate(scores))[6:-6]  # The middle half of 24 runs.
    assert statistics.interquartile_mean(scores) == pytest.approx(half.mean())


def test_probability_of_improvement():
    one = [np.array([1.0, 3.0]), np.array([5.0])]
    other = [np.array([2.0, 3.0]), np.array([5.0])]
    # First task: of the pairs (1, 2), (1, 3), (3, 2), (3, 3), one is better and one is equal.
    assert statistics.probability_of_improvement(one, other) == pytest.approx((1.5 / 4 + 0.5) / 2)


@pytest.mark.parametrize(
    ("measure", "algorithms"),
    [
        (statistics.mean, 1),
        (statistics.interquartile_mean, 1),
        (statistics.difference_of_means, 2),
        (statistics.probability_of_improvement, 2),
    ],
)
def test_all_resamples_are_measured_at_once(measure, algorithms):
    """One by one, the pairs of a large sweep take minutes."""
    random = np.random.default_rng(0)
    scores = [[random.normal(size=n) for n in (2, 5, 3)] for _ in range(algorithms)]
    many = [[random.choice(task, (4, len(task))) for task in one] for one in scores]
    found = measure(*many)
    for index in range(4):
        assert found[index] == measure(*([task[index] for task in one] for one in many))
    calls = []
    interval = statistics.bootstrap(lambda *all_: calls.append(all_) or measure(*all_), *scores)
    assert interval.low < interval.value < interval.high and len(calls) == 2


def test_the_ends_of_the_interval():
    """Resampled means of many seeds are normal: 2.5 % of them lie below, 2.5 % above."""
    scores = [np.random.default_rng(task).exponential(50, 400) for task in range(2)]
    interval = statistics.bootstrap(statistics.mean, scores)
    deviation = np.sqrt(sum(np.var(task) / 400 for task in scores)) / 2
    ends = (np.array([interval.low, interval.high]) - interval.value) / deviation
    # 1.645 for 90 %; the ends of 2,000 resamples have a standard deviation of 0.06.
    np.testing.assert_allclose(ends, [-1.96, 1.96], atol=0.15)


def test_seeds_are_drawn_within_tasks():
    """If tasks differ much, but seeds do not, there is no doubt about the mean."""
    interval = statistics.bootstrap(statistics.mean, [np.full(3, 0.0), np.full(3, 900.0)])
    assert (interval.low, interval.value, interval.high) == (450.0, 450.0, 450.0)
    assert str(interval) == "450 [450, 450]"
    assert str(statistics.Interval(0.475, -0.2, 1234.7)) == "0.475 [-0.2, 1235]"


def test_one_seed_has_no_interval():
    interval = statistics.bootstrap(statistics.mean, [np.array([1.0]), np.array([4.0])])
    assert str(interval) == "2.5" and np.isnan([interval.low, interval.high]).all()
    # Nor has a difference, if one place has one seed.
    scores = [[np.array([8.0, 10.0])], [np.array([4.0])]]
    for pair in (scores, scores[::-1]):
        interval = statistics.bootstrap(statistics.difference_of_means, *pair)
        assert np.isnan([interval.low, interval.high]).all()


def test_two_algorithms_are_drawn_apart():
    one, other = [np.array([8.0, 10.0])], [np.array([1.0, 3.0])]
    interval = statistics.bootstrap(statistics.difference_of_means, one, other)
    assert (interval.low, interval.value, interval.high) == (5.0, 7.0, 9.0)


def test_a_table_is_aligned():
    rows = [["task", "steps"], ["a", "100,000"], ["longest", "5"]]
    lines = ["task       steps", "a        100,000", "longest        5"]
    assert statistics.aligned(rows) == lines
