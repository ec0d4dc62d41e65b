"""The figures of an evaluation, from its episodes."""

from collections.abc import Sequence

import numpy as np
from dm_env import specs

from agents.environment_loop import EvaluationEpisode

# An episode that was cut off has failed if it earned less than this share of the range of its
# possible returns.
_FAILED_BELOW = 0.1
# A return-to-go is complete if what follows a cut-off counts for at most this share.
_NEGLIGIBLE_DISCOUNT = 0.05


def counted(episodes: float) -> str:
    """Returns a number of episodes with its noun, such as "1 episode"."""
    return "1 episode" if episodes == 1 else f"{episodes:.0f} episodes"


def figures(
    episodes: Sequence[EvaluationEpisode], reward_spec: specs.Array, discount: float
) -> dict[str, float]:
    """Computes the figures of an evaluation.

    Args:
      episodes: one or more episodes.
      reward_spec: the reward spec of the environment.
      discount: gamma of the learner.

    Returns:
      By name: mean, lowest, median and highest return, and the number of episodes. If the rewards
      are bounded and the environment terminated none of the episodes, also the share of failed
      episodes: those whose return is in the lowest tenth of the range that the bounds allow for an
      episode of that length. Also the mean discounted return, by gamma and the environment's
      discounts, after the states whose remaining rewards are known, if there are any: all states of
      a terminated episode, else those so early that what follows the cut-off is negligible.
    """
    returns = np.array([episode.rewards.sum() for episode in episodes])
    found = {
        "episode_return": float(returns.mean()),
        "episode_return_min": float(returns.min()),
        "episode_return_median": float(np.median(returns)),
        "episode_return_max": float(returns.max()),
        "episodes": float(len(episodes)),
    }
    low, high = reward_bounds(reward_spec)
    # The bounds of one step bound the return of a whole episode only if the environment doesn't end
    # it: the best return may be a single reward at the goal, or a cost for each step to it.
    cut_off = all(episode.discounts[-1] != 0.0 for episode in episodes)
    if cut_off and np.isfinite([low, high]).all() and low < high:
        lengths = np.array([len(episode.rewards) for episode in episodes])
        share = (returns - low * lengths) / ((high - low) * lengths)
        found["failed_share"] = float(np.mean(share < _FAILED_BELOW))
    after = np.concatenate([returns_to_go(episode, discount) for episode in episodes])
    if after.size:
        found["discounted_return"] = float(after.mean())
    return found


def reward_bounds(reward_spec: specs.Array) -> tuple[float, float]:
    """Returns the lowest and the highest reward; infinite if they are not known."""
    if not isinstance(reward_spec, specs.BoundedArray):
        return -np.inf, np.inf
    return float(np.min(reward_spec.minimum)), float(np.max(reward_spec.maximum))


def returns_to_go(episode: EvaluationEpisode, discount: float) -> np.ndarray:
    """Computes the discounted return after each state whose remaining rewards are known.

    Args:
      episode: an episode of T steps.
      discount: gamma.

    Returns:
      [T] float64 after a termination; else only for the first states, so far from the cut-off that
      what follows it is negligible.
    """
    discounts = discount * episode.discounts
    after = np.zeros(len(episode.rewards) + 1)
    for step in range(len(episode.rewards) - 1, -1, -1):
        after[step] = episode.rewards[step] + discounts[step] * after[step + 1]
    # Weight in each state's return of what follows the last step: zero after a termination.
    remaining = np.cumprod(discounts[::-1])[::-1]
    return after[:-1][remaining <= _NEGLIGIBLE_DISCOUNT]
