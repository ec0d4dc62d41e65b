"""Which starts a policy fails from, and where that is said."""

import numpy as np
import pytest

from agents.nodes import starts
from agents.runs import advice
from rl_replicator.runs.metrics import MetricWriter

NUMBERS = 12


def played(count, returned, seed=3):
    """Returns rows of episodes whose returns are a function of their starts, [NUMBERS]."""
    random = np.random.default_rng(seed)
    found = []
    for numbers in random.normal(size=(count, NUMBERS)):
        named = {f"position[{i}]": float(value) for i, value in enumerate(numbers)}
        found.append(starts.row(float(returned(numbers)), named))
    return found


def low(numbers):
    return 900.0 + numbers[0] if numbers[5] > -0.25 else 3.0


def test_the_number_that_tells_returns_apart():
    rows = played(30, low)
    found = starts.find(rows)
    assert found.name == "position[5]" and set(found.below) == {3.0} and min(found.above) > 800
    numbers = [row["start/position[5]"] for row in rows]
    assert found.threshold == max(x for x in numbers if x <= -0.25)
    failed = len(found.below)
    assert 2 <= failed < 28 and len(found.above) == 30 - failed
    assert str(found) == (
        f"episodes that began with position[5] up to {found.threshold:.3g} returned 3 on average "
        f"({failed} of 30), the others 900"
    )
    # The newest hundred count.
    assert starts.find(rows + played(100, lambda numbers: 7.0)) is None


@pytest.mark.parametrize(
    ("count", "returned"),
    [
        (9, low),  # Too few.
        (30, lambda numbers: 900.0 + numbers[5]),  # The difference is small.
        (30, lambda numbers: 900.0),
        (30, lambda numbers: float(abs(1e4 * numbers[1]) % 2 > 1)),  # By chance.
    ],
)
def test_what_tells_nothing(count, returned):
    assert starts.find(played(count, returned)) is None


def test_few_false_alarms():
    """Returns that do not depend on the start: at most 1 % of the runs are given a reason."""
    coin = np.random.default_rng(1)
    alarms = [
        starts.find(played(14, lambda numbers: coin.choice([3.0, 900.0]), seed))
        for seed in range(100)
    ]
    assert sum(found is not None for found in alarms) <= 5


def test_a_number_without_variation_is_no_reason():
    rows = [starts.row(float(i), {"height": 1.0}) for i in range(12)]
    assert starts.find(rows) is None and starts.find([]) is None
    assert starts.find([starts.row(float(i), {}) for i in range(12)]) is None


def test_the_newest_third_of_the_evaluations_is_in_the_advice(tmp_path):
    writer = MetricWriter(tmp_path, "environment_steps")
    for step in range(1, 10):
        row = {"episode_return": 480.0, "episode_return_min": 3.0, "episode_return_max": 970.0}
        writer.write("evaluator", 1000 * step, {**row, "failed_share": 0.3})
        writer.write("learner", 1000 * step, {"critic_loss": 1.0})
        returned = low if step > 6 else lambda numbers: 3.0 - low(numbers)
        writer.write_rows(starts.GROUP, 1000 * step, played(10, returned, seed=step))
    writer.close()
    *_, last = advice.advise(tmp_path, {})
    assert last.startswith("also: episodes that began with position[5] up to -0.")
    assert "returned 3 on average" in last and "of 30), the others 900" in last
    assert not list((tmp_path / "tensorboard").glob("starts*"))
