"""Advice at the end of a run whose return stood still, from its metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from rl_replicator.runs.metrics import read_metrics

# Evaluations that a judgement needs.
_FEWEST_EVALUATIONS = 6
# The return stood still if the last third of the evaluations is above the third before by less than
# this share of the range of all returns.
_PROGRESS = 0.05
# Below this share of failed episodes and this spread of returns, a run that stands still is done.
_SPREAD = 0.2

_EDGE_MASS = 0.1
_SATURATION = 0.8
_DORMANT = 0.5
_BIAS = 0.5
_FAILED_SOME, _FAILED_ALL = 0.1, 0.9
# Effective share of a batch that importance weights leave.
_EFFECTIVE_SHARE = 0.2


def advise(run_dir: Path) -> list[str]:
    """Returns lines that say why a run does not learn, the most telling one first.

    Args:
      run_dir: the run's directory.

    Returns:
      That nothing was learned if there was no learner step. Nothing if the return still rose, if
      there are too few evaluations, or if nearly all episodes succeed; else what the metrics of the
      last third of the run point to.
    """
    evaluator = read_metrics(run_dir, "evaluator")
    steps = evaluator.get("learner_steps", np.zeros(0))
    if len(steps) and steps[-1] == 0:
        return [
            "no learner step was taken: the learner starts when the replay holds "
            "--agent.replay.min-size transitions (one an action, so fewer than environment steps "
            "if actions repeat); train longer, or lower it"
        ]
    returns = evaluator.get("episode_return", np.zeros(0))
    if not stood_still(returns):
        return []
    figures = {**_last_third(read_metrics(run_dir, "learner")), **_last_third(evaluator)}
    if _succeeds(figures):
        return []
    found = list(_causes(figures))
    still = (
        "the return did not rise over the last third of the evaluations "
        f"({np.mean(_thirds(returns)[-1]):.0f})"
    )
    if not found:
        found = [
            "no figure points to a cause; try more learner steps per environment step "
            "(--agent.replay.samples-per-insert), other noise, or another seed"
        ]
    return [f"{still}: {found[0]}", *(f"also: {cause}" for cause in found[1:])]


def stood_still(returns: np.ndarray) -> bool:
    """Returns whether the last third of a run's evaluations brought no progress.

    Args:
      returns: [T] mean return of each evaluation.
    """
    if len(returns) < _FEWEST_EVALUATIONS:
        return False
    _, before, last = _thirds(returns)
    spread = max(float(np.ptp(returns)), 1e-9)
    return (np.mean(last) - np.mean(before)) / spread < _PROGRESS


def _thirds(values: np.ndarray) -> list[np.ndarray]:
    return np.array_split(values, 3)


def _last_third(table: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the mean of each figure over the last third of its rows that have it."""
    found = {}
    for name, column in table.items():
        known = column[np.isfinite(column)]
        if known.size:
            found[name] = float(np.mean(_thirds(known)[-1])) if known.size > 2 else float(known[-1])
    return found


def _succeeds(figures: Mapping[str, float]) -> bool:
    """Whether nothing is left to learn, as far as the figures tell: no failure, equal returns."""
    high, low = figures["episode_return_max"], figures["episode_return_min"]
    is_even = high - low <= _SPREAD * max(abs(high), abs(low), 1e-9)
    return is_even and figures.get("failed_share", 1.0) < _FAILED_SOME


def _causes(figures: Mapping[str, float]) -> Iterator[str]:
    """Yields what the figures point to, the most telling cause first."""
    for side, option, direction in (("high", "value-max", "raise"), ("low", "value-min", "lower")):
        mass = figures.get(f"value_edge_mass_{side}", 0.0)
        if mass > _EDGE_MASS:
            edge = "upper" if side == "high" else "lower"
            yield (
                f"value support too small: {mass:.0%} of the mass on its {edge} edge; {direction} "
                f"--agent.{option}"
            )
    failed = figures.get("failed_share", 0.0)
    if failed >= _FAILED_ALL:
        yield (
            f"{failed:.0%} of the evaluation episodes found almost no reward; explore more "
            "(--agent.exploration-sigma, --actors) or train for longer"
        )
    elif failed > _FAILED_SOME:
        yield (
            f"{failed:.0%} of the evaluation episodes failed while others reached "
            f"{figures['episode_return_max']:.0f}: some starts were never learned; explore more "
            "from them (--actors, --agent.exploration-sigma), or enlarge --agent.policy-layers"
        )
    saturation = figures.get("action_saturation", 0.0)
    if saturation > _SATURATION:
        yield (
            f"{saturation:.0%} of the policy's actions are at their bounds, where tanh passes no "
            "gradient; raise --agent.preactivation-penalty, or try --agent.squash-gradient "
            "inverting"
        )
    bias, seen = figures.get("q_bias"), figures.get("discounted_return")
    if bias is not None and seen is not None and abs(bias) > _BIAS * max(abs(seen), 1.0):
        word = "over" if bias > 0 else "under"
        yield (
            f"Q {word}estimates: it exceeds the discounted returns then seen ({seen:.1f}) by "
            f"{bias:+.1f}; lower --agent.replay.samples-per-insert or --agent.critic-learning-rate"
        )
    dormant = figures.get("dormant_share", 0.0)
    if dormant > _DORMANT:
        yield (
            f"{dormant:.0%} of the critic's units are dormant; lower --agent.critic-learning-rate "
            "or --agent.replay.samples-per-insert"
        )
    effective = figures.get("effective_batch_share", 1.0)
    if effective < _EFFECTIVE_SHARE:
        yield (
            f"importance weights leave {effective:.0%} of each batch; lower "
            "--agent.replay.priority-exponent"
        )
