"""Figures of an evaluation, computed by hand."""

import numpy as np
import pytest
from dm_env import specs

import environments
from agents.environment_loop import EvaluationEpisode, evaluation_episode
from agents.nodes.evaluator import evaluation_figures, returns_to_go
from tests.agents.still_actor import StillActor
from tests.environments import faulty

BOUNDED = specs.BoundedArray((), np.float64, -1.0, 1.0)


def episode(*rewards, discount=1.0, last_discount=1.0):
    discounts = np.full(len(rewards), discount)
    discounts[-1] *= last_discount
    return EvaluationEpisode(np.array(rewards), discounts)


def test_a_mean_hides_what_minimum_median_and_failures_show():
    played = [episode(*[1.0] * 10), episode(*[-1.0] * 10), episode(*[-0.9] * 10)]
    found = evaluation_figures(played, BOUNDED, discount=0.99)
    assert found["episode_return"] == pytest.approx(-3.0)
    assert (found["episode_return_min"], found["episode_return_max"]) == (-10.0, 10.0)
    assert found["episode_return_median"] == pytest.approx(-9.0)
    # Possible returns: -10 to 10. Less than a tenth of the way: below -8.
    assert found["failed_share"] == pytest.approx(2 / 3)
    assert found["episodes"] == 3


def test_the_length_of_an_episode_counts():
    """Ten steps could have earned between -10 and 10, two between -2 and 2."""
    found = evaluation_figures([episode(*[-0.5] * 10), episode(-1.0, -0.9)], BOUNDED, discount=0.9)
    assert found["failed_share"] == 0.5


@pytest.mark.parametrize(
    "spec", [specs.Array((), np.float64), specs.BoundedArray((), np.float64, 0.0, np.inf)]
)
def test_without_bounds_there_are_no_failures(spec):
    assert "failed_share" not in evaluation_figures([episode(1.0)], spec, discount=0.9)


@pytest.mark.parametrize("rewards", [[*[0.0] * 29, 1.0], [*[-1.0] * 29, 0.0]])
def test_bounds_of_one_reward_do_not_judge_an_episode_that_ends_at_its_goal(rewards):
    reached, missed = episode(*rewards, last_discount=0.0), episode(*[-1.0] * 200)
    assert "failed_share" not in evaluation_figures([reached], BOUNDED, discount=0.9)
    assert "failed_share" not in evaluation_figures([missed, reached], BOUNDED, discount=0.9)
    assert evaluation_figures([missed, missed], BOUNDED, discount=0.9)["failed_share"] == 1.0


def test_returns_to_go():
    np.testing.assert_allclose(
        returns_to_go(episode(1.0, 2.0, 4.0, last_discount=0.0), 0.5), [3.0, 4.0, 4.0]
    )
    # 0.5**5 is less than 0.05, 0.5**4 is more: five steps to the cut-off are enough.
    cut_off = returns_to_go(episode(*[1.0] * 6), 0.5)
    np.testing.assert_allclose(cut_off, [2 * (1 - 0.5**6), 2 * (1 - 0.5**5)])
    assert "discounted_return" not in evaluation_figures([episode(1.0)], BOUNDED, discount=0.9)


def test_the_discounts_of_the_environment_count_in_returns_to_go():
    """Gamma times the environment's discount is 0.5, so the numbers are the same as above."""
    ended = episode(1.0, 2.0, 4.0, discount=0.625, last_discount=0.0)
    np.testing.assert_allclose(returns_to_go(ended, 0.8), [3.0, 4.0, 4.0])
    cut_off = returns_to_go(episode(*[1.0] * 6, discount=0.625), 0.8)
    np.testing.assert_allclose(cut_off, [2 * (1 - 0.5**6), 2 * (1 - 0.5**5)])


def test_an_episode_keeps_its_discounts():
    played = evaluation_episode(
        environments.make(f"{faulty.__name__}:halving", 0), StillActor(), 99
    )
    assert played.discounts.tolist() == [0.5] * 5 and len(played.rewards) == 5
    ended = evaluation_episode(environments.make("environments.fakes:chain", 0), StillActor(), 99)
    assert ended.discounts.tolist() == [1.0] * 9 + [0.0]
