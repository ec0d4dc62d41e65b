"""How settings are changed."""

import numpy as np
import pytest

from rl_replicator.sweeps.perturbation import drawn, perturbed
from rl_replicator.sweeps.search import Choice, Range

COUNT = 4000


def changes(space, value):
    rng = np.random.default_rng(0)
    return [perturbed(space, value, rng) for _ in range(COUNT)]


def test_three_quarters_are_multiplied_and_the_others_drawn():
    values = changes(Range(1e-4, 1e-1, is_log=True), "0.001")
    up, down = values.count("0.0012"), values.count("0.0008")
    # Within five standard deviations.
    assert up / COUNT == pytest.approx(0.375, abs=0.04)
    assert down / COUNT == pytest.approx(0.375, abs=0.04)
    others = np.array([float(one) for one in values if one not in ("0.0012", "0.0008")])
    assert others.min() >= 1e-4 and others.max() <= 1e-1
    # Uniform in the logarithm: a third in each decade.
    for low in (1e-4, 1e-3, 1e-2):
        share = np.mean((low <= others) & (others < 10 * low))
        assert share == pytest.approx(1 / 3, abs=0.08)


def test_numbers_stay_within_the_search():
    assert set(changes(Range(1.0, 1.1), "1.05")) > {"1", "1.1"}
    assert all(1 <= float(one) <= 1.1 for one in changes(Range(1.0, 1.1), "1.05"))


def test_steps_of_a_grid_change_by_one_at_least():
    values = changes(Range(0.0, 1.0, step=0.25), "0.5")
    assert set(values) == {"0", "0.25", "0.5", "0.75", "1"}
    assert values.count("0.25") + values.count("0.75") > 0.75 * COUNT
    assert values.count("0.5") < 0.08 * COUNT  # Only by a draw.


@pytest.mark.parametrize("is_log", [False, True])
def test_whole_numbers_are_a_grid(is_log):
    space = Range(1.0, 4.0, is_log=is_log, is_whole=True)
    values = changes(space, "2")  # 2.4 and 1.6 are not whole numbers.
    assert set(values) == {"1", "2", "3", "4"}
    assert values.count("1") + values.count("3") > 0.75 * COUNT
    assert abs(values.count("1") - values.count("3")) < 0.15 * COUNT
    rng = np.random.default_rng(0)
    draws = [drawn(space, rng) for _ in range(COUNT)]
    ends = np.log([0.5, 1.5, 2.5, 3.5, 4.5]) if is_log else np.arange(5)
    for value, share in zip("1234", np.diff(ends) / (ends[-1] - ends[0]), strict=True):
        assert draws.count(value) / COUNT == pytest.approx(share, abs=0.04)


def test_choices_move_to_a_neighbour():
    values = changes(Choice(("1", "3", "5", "9")), "3")
    assert set(values) == {"1", "3", "5", "9"}
    assert values.count("9") / COUNT == pytest.approx(0.0625, abs=0.025)
    assert values.count("1") / COUNT == pytest.approx(0.4375, abs=0.04)
    assert set(changes(Choice(("1", "3", "5", "9")), "9")) == {"1", "3", "5", "9"}


def test_draws():
    rng = np.random.default_rng(0)
    uniform = [float(drawn(Range(-1.0, 3.0), rng)) for _ in range(COUNT)]
    assert min(uniform) >= -1 and max(uniform) <= 3
    assert np.mean(uniform) == pytest.approx(1, abs=0.1)
