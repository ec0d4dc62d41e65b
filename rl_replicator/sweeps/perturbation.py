"""How population based training changes a setting: a factor, or a new draw."""

from __future__ import annotations

import numpy as np

from rl_replicator.sweeps.search import Choice, Range, written

_DRAW_PROBABILITY = 0.25
_UP, _DOWN = 1.2, 0.8


def perturbed(space: Choice | Range, value: str, rng: np.random.Generator) -> str:
    """Returns a changed value of a setting, as Jaderberg et al. 2017 (arXiv:1711.09846) explore.

    With probability 0.25 it is drawn from the search. Otherwise, a number is multiplied by 1.2 or
    0.8 and kept between the ends of the search (on a grid, such as that of the whole numbers, it
    moves by at least one step), and a choice moves to one of its neighbours.

    Args:
      space: the values to choose from.
      value: the current value, as written.
      rng: source of the draws.
    """
    if rng.random() < _DRAW_PROBABILITY:
        return drawn(space, rng)
    is_up = rng.random() < 0.5
    if isinstance(space, Choice):
        index = space.values.index(value) + (1 if is_up else -1)
        return space.values[min(max(index, 0), len(space.values) - 1)]
    number = float(value) * (_UP if is_up else _DOWN)
    if space.spacing is not None:
        number = _on_grid(space, number, float(value), space.spacing)
    return written(space, min(max(number, space.low), space.high))


def drawn(space: Choice | Range, rng: np.random.Generator) -> str:
    """Returns a value of the search.

    Args:
      space: the values to choose from.
      rng: source of the draw.
    """
    if isinstance(space, Choice):
        return space.values[rng.integers(len(space.values))]
    if space.is_log:
        # So that whole numbers at the ends are drawn like those between them.
        beyond = 0.5 if space.is_whole else 0.0
        ends = np.log([space.low - beyond, space.high + beyond])
        number = np.exp(rng.uniform(*ends))
        return written(space, round(number) if space.is_whole else number)
    if space.spacing is not None:
        count = round((space.high - space.low) / space.spacing) + 1
        return written(space, space.low + space.spacing * int(rng.integers(count)))
    return written(space, rng.uniform(space.low, space.high))


def _on_grid(space: Range, number: float, before: float, step: float) -> float:
    """Returns the multiple of the step that is nearest to a number, and differs from `before`."""
    index, old = round((number - space.low) / step), round((before - space.low) / step)
    if index == old:
        index += 1 if number > before else -1
    return space.low + index * step
