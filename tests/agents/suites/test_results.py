"""Which evaluation of a run counts at a given number of environment steps."""

import pytest

from agents.suites import results
from agents.suites.results import ResultRow


def row(steps, mean=1.0):
    return ResultRow(
        *("td3", "paper", "state", "walker:walk", 1, steps, steps // 4),
        *(mean, mean, mean, mean, 0.0, 10, 60.0),
    )


@pytest.mark.parametrize(
    ("steps", "nearest"),
    [
        ((90_168, 100_048, 110_032), 100_048),  # Leases end at multiples of the action repeat.
        ((99_950, 100_000, 100_010), 100_000),
        ((99_950, 100_048), 100_048),
        ((98_000, 102_000), 98_000),
        ((97_999, 102_001), None),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_run_counts_with_its_evaluation_that_is_nearest_to_the_mark(steps, nearest, order):
    rows = [row(step) for step in steps][::order]
    found = results.at_mark(rows, 100_000)
    assert [one.environment_steps for one in found.get("walker:walk", [])] == (
        [] if nearest is None else [nearest]
    )


def test_of_two_evaluations_after_equal_steps_the_later_one_counts():
    rows = [row(100_000, mean) for mean in (1.0, 2.0)]
    (found,) = results.at_mark(rows, 100_000)["walker:walk"]
    assert found.return_mean == 2.0
