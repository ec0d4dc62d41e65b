"""Measures over tasks and seeds, with stratified bootstrap intervals.

The measures are those of Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice" (arXiv:2108.13264). Every task has the same weight, however many seeds it
has. Scores are passed as one array [..., seeds] for each task, and the result of a measure is
[...]: any number of resamples is measured at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

Scores = Sequence[np.ndarray]
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Interval:
    """A measure and its confidence interval.

    Attributes:
      value: the value of the measure.
      low: lower end of the 95 % interval; NaN if a task has fewer than two seeds.
      high: upper end; NaN likewise.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        if not np.isfinite(self.low):
            return number(self.value)
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


def number(value: float) -> str:
    """Formats a score: whole from 100 on, else with three digits: some tasks return at most 1."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the rows as lines, with the first column aligned left, and all others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def mean(scores: Scores) -> np.ndarray:
    """Returns the mean over tasks of each task's mean over seeds."""
    return np.mean(np.stack([np.mean(task, axis=-1) for task in scores], axis=-1), axis=-1)


def interquartile_mean(scores: Scores) -> np.ndarray:
    """Returns the mean of the middle half of the scores (section 4.3 of the paper).

    A score at a quartile counts by the share of it that lies inside of the middle half. For equal
    numbers of seeds and a number of scores that is a multiple of four, this is the mean of the
    scores without the lowest and the highest quarter.
    """
    values = np.concatenate([np.asarray(task, np.float64) for task in scores], axis=-1)
    counts = [np.shape(task)[-1] for task in scores]
    weights = np.repeat(1 / np.array(counts), counts)  # [runs]
    order = np.argsort(values, axis=-1, kind="stable")  # [..., runs]
    values, weights = np.take_along_axis(values, order, -1), weights[order] / weights.sum()
    upper = np.cumsum(weights, axis=-1)
    lower = upper - weights
    inside = np.clip(np.minimum(upper, 0.75) - np.maximum(lower, 0.25), 0.0, None)
    return np.sum(inside * values, axis=-1) / np.sum(inside, axis=-1)


# The measures of all scores of one algorithm, by name.
MEASURES = {"mean": mean, "interquartile mean": interquartile_mean}


def probability_of_improvement(scores: Scores, others: Scores) -> np.ndarray:
    """Returns the probability that a run of one algorithm is better than a run of the other.

    The Mann-Whitney statistic of each task, averaged over tasks (section 4.3 of the paper); ties
    count half.

    Args:
      scores: the scores of one algorithm.
      others: the scores of the other one, for the same tasks in the same order.
    """
    shares = []
    for one, other in zip(scores, others, strict=True):
        differences = np.asarray(one)[..., :, None] - np.asarray(other)[..., None, :]
        shares.append(np.mean((differences > 0) + 0.5 * (differences == 0), axis=(-2, -1)))
    return np.mean(np.stack(shares, axis=-1), axis=-1)


def bootstrap(measure: Callable[..., np.ndarray], *scores: Scores, seed: int = 0) -> Interval:
    """Computes a measure and its percentile interval by the stratified bootstrap.

    Each of 2,000 resamples draws seeds with replacement within each task (section 4.1 of the
    paper), independently for each algorithm.

    Args:
      measure: takes as many `Scores` as are passed here.
      *scores: one for each algorithm, of arrays [seeds].
      seed: the seed of the resampling; equal scores and seeds give equal intervals.

    Returns:
      The measure of the scores themselves, with its 95 % interval.
    """
    import scipy.stats  # Takes longer than all other imports of `compare`.

    value = float(measure(*scores))
    # Resamples of a single seed are all equal, so its unknown spread would count as zero.
    if any(len(task) < 2 for one in scores for task in one):
        return Interval(value, np.nan, np.nan)

    def resampled(*tasks: np.ndarray, axis: int) -> np.ndarray:
        rest = iter(tasks)
        return measure(*([next(rest) for _ in one] for one in scores))

    found = scipy.stats.bootstrap(
        [task for one in scores for task in one],
        resampled,
        n_resamples=_RESAMPLES,
        vectorized=True,
        method="percentile",
        random_state=seed,
    )
    return Interval(value, *map(float, found.confidence_interval))


def difference_of_means(scores: Scores, others: Scores) -> np.ndarray:
    """Returns by how much the mean of one algorithm exceeds that of the other.

    Args:
      scores: the scores of one algorithm.
      others: the scores of the other one, for the same tasks.
    """
    return mean(scores) - mean(others)
