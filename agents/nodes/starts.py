"""From which starts a policy fails: the number of the first observation that separates returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl_replicator.runs.metrics import WALL_TIME, read_metrics
from rl_replicator.runs.statistics import number

GROUP, RETURN, _PREFIX = "starts", "episode_return", "start/"
_FEWEST_EPISODES = 10
_FEWEST_EACH = 2  # Of the episodes on either side.
_MOST_EPISODES = 100
_MOST_NUMBERS = 500
_SHUFFLES = 199
_SIGNIFICANT = 0.01
# A smaller difference of the means, relative to the greatest return, is of no interest.
_RELEVANT = 0.2


class Starts(NamedTuple):
    """Two groups of episodes, told apart by one number of the first observation.

    Attributes:
      name: the number, such as `position[1]`.
      threshold: its highest value in the first group.
      below: [N] returns of the first group.
      above: [M] returns of the second group.
    """

    name: str
    threshold: float
    below: np.ndarray
    above: np.ndarray

    def __str__(self) -> str:
        count = len(self.below) + len(self.above)
        return (
            f"episodes that began with {self.name} up to {number(self.threshold)} returned "
            f"{number(self.below.mean())} on average ({len(self.below)} of {count}), the others "
            f"{number(self.above.mean())}"
        )


def row(episode_return: float, start: Mapping[str, float]) -> dict[str, float]:
    """Returns the figures of an episode as a row of metrics.

    Args:
      episode_return: its return.
      start: the numbers of its first observation, by name; more than 500 are left out.
    """
    kept = start.items() if len(start) <= _MOST_NUMBERS else ()
    return {RETURN: episode_return, **{_PREFIX + name: value for name, value in kept}}


def of_run(run_dir: Path) -> Starts | None:
    """Returns the starts that told the newest third of a run's evaluations apart.

    Args:
      run_dir: the run's directory.

    Returns:
      See `find`.
    """
    table = read_metrics(run_dir, GROUP)
    if not table:
        return None
    steps = next(iter(table.values()))
    newest = steps > 2 / 3 * steps[-1]
    return find(
        [
            {name: float(table[name][index]) for name in table if name != WALL_TIME}
            for index in np.flatnonzero(newest)
        ]
    )


def find(rows: Sequence[Mapping[str, float]]) -> Starts | None:
    """Finds the number, and its threshold, that divides episodes into the most different returns.

    They are divided so that the variance between the groups is greatest. A permutation test over
    all numbers and thresholds at once tells whether that is more than chance.

    Args:
      rows: those of `row`; the last 100 are used.

    Returns:
      None if it may be chance (p > 0.01), if the means differ by less than a fifth of the greatest
      return, or if there are fewer than ten episodes.
    """
    rows = rows[-_MOST_EPISODES:]
    names = [name for name in (rows[0] if rows else ()) if name.startswith(_PREFIX)]
    if len(rows) < _FEWEST_EPISODES or not names:
        return None
    returns = np.array([one[RETURN] for one in rows])
    numbers = np.array([[one.get(name, np.nan) for one in rows] for name in names])  # [D, N]
    order = np.argsort(numbers, axis=1, kind="stable")
    ordered = np.take_along_axis(numbers, order, axis=1)
    size = np.arange(1, len(rows))  # Of the first group.
    may_divide = (np.diff(ordered) > 0) & (np.minimum(size, len(rows) - size) >= _FEWEST_EACH)

    def between(values: np.ndarray) -> np.ndarray:
        """Returns the variance between the groups, up to a factor: [N] -> [D, N - 1]."""
        sums = np.cumsum((values - values.mean())[order], axis=1)[:, :-1]
        return may_divide * sums**2 / (size * (len(rows) - size))

    found = between(returns)
    if not found.max() > 0:
        return None
    shuffle = np.random.default_rng(0).permutation
    which, last = np.unravel_index(np.argmax(found), found.shape)
    below, above = np.split(returns[order[which]], [last + 1])
    if abs(below.mean() - above.mean()) < _RELEVANT * np.abs(returns).max():
        return None
    chances = [between(shuffle(returns)).max() >= found.max() for _ in range(_SHUFFLES)]
    if (1 + sum(chances)) / (1 + _SHUFFLES) > _SIGNIFICANT:
        return None
    name = names[which].removeprefix(_PREFIX)
    return Starts(name, float(ordered[which, last]), below, above)
