"""What a run spent its time on, why it may not learn, and which options would help."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from agents.nodes import starts
from rl_replicator.processes import gpus
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.statistics import number

# Number of evaluations below which no advice is given.
_FEWEST_EVALUATIONS = 6
# The return stood still if the last third of the evaluations exceeds the third before by less than
# this share of the range of all returns.
_PROGRESS = 0.05
# A run that stands still has succeeded if few episodes fail and the spread of its returns, relative
# to their size, is at most this.
_SPREAD = 0.2

_FAILED_SOME, _FAILED_ALL = 0.1, 0.9
_ABSENT = object()
# A smaller share of time spent waiting is negligible.
_WAITING_THRESHOLD = 0.05
# One side holds up the other if it waits for less than this fraction of the other's waiting time.
_MUCH_LESS = 0.5
_KINDS = ("actor", "learner")
_PART_NAMES = {
    "environment": "environment",
    "render": "rendering",
    "policy": "policy",
    "insert": "insertion",
    "wait": "waiting",
    "step": "steps",
    "priorities": "priorities",
    "publish": "weights",
    "save": "checkpoints",
}
_WORK = ("environment", "render", "policy", "insert")  # Of an actor.
_CHECKPOINTS = 0.1
# Shares that add up to no more than this are meaningless, and would be shown as 0 %.
_NOTHING = 0.01
_GPU = "a GPU, or several with --replicas N,"


def advise(run_dir: Path, options: Mapping[str, Any]) -> list[str]:
    """Returns lines on why a run does not learn, the most telling one first.

    Args:
      run_dir: the run's directory.
      options: the options of the run, by name, as in its `config.json`. The advice names no others.

    Returns:
      A line that nothing was learned if there was no learner step. Nothing if there are too few
      evaluations, if nearly all episodes succeed, or if the return still rose and not nearly all
      episodes fail; else what the metrics of the last third of the run point to.
    """
    evaluator = read_metrics(run_dir, "evaluator")
    steps = evaluator.get("learner_steps", np.zeros(0))
    if len(steps) and steps[-1] == 0:
        size = known(options, "--agent.replay.min-size")
        return [
            "no learner step was taken: the learner starts when the replay holds "
            f"{size or 'enough'} transitions (one per action, so fewer than environment steps if "
            f"actions repeat); train longer{', or lower it' if size else ''}"
        ]
    returns = evaluator.get("episode_return", np.zeros(0))
    if len(returns) < _FEWEST_EVALUATIONS:
        return []
    figures = {**_last_third(read_metrics(run_dir, "learner")), **_last_third(evaluator)}
    failed = evaluator.get("failed_share", np.full(len(returns), np.nan))
    if not np.isfinite(_thirds(failed)[-1]).all():
        # Evaluations with terminated episodes, perhaps at their goal, lack this figure, and the
        # others say nothing about them.
        figures.pop("failed_share", None)
    is_still = stood_still(returns)
    # Returns near 0 rise and fall by meaningless shares of their range.
    is_low = figures.get("failed_share", 0.0) >= _FAILED_ALL and failed[-1] >= _FAILED_ALL
    if not (is_still or is_low) or _succeeds(figures) or _is_best(evaluator):
        return []
    found = list(_causes(figures, options))
    verdict = (
        f"the return {'did not rise' if is_still else 'stayed low'} over the last third of the "
        f"evaluations ({number(np.mean(_thirds(returns)[-1]))})"
    )
    if not found:
        ratio = known(options, "--agent.replay.samples-per-insert")
        found = [
            "no figure points to a cause; try "
            f"{f'more learner steps per environment step ({ratio}), ' if ratio else ''}"
            "other noise, or another seed"
        ]
    if (told := starts.of_run(run_dir)) is not None:
        found.append(str(told))
    return [f"{verdict}: {found[0]}", *(f"also: {cause}" for cause in found[1:])]


def stood_still(returns: np.ndarray) -> bool:
    """Returns whether the last third of a run's evaluations brought no progress.

    Args:
      returns: [T] mean return of each evaluation, at least three.
    """
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
    """Whether nothing seems left to learn: few failures, and similar returns."""
    high, low = figures["episode_return_max"], figures["episode_return_min"]
    is_even = high - low <= _SPREAD * max(abs(high), abs(low), 1e-9)
    return is_even and figures.get("failed_share", 1.0) < _FAILED_SOME


def _is_best(evaluator: Mapping[str, np.ndarray]) -> bool:
    """Whether all last episodes have the highest return of the run, and earlier ones had less."""
    best = np.max(evaluator["episode_return_max"])
    lowest = evaluator["episode_return_min"]
    return bool((_thirds(lowest)[-1] == best).all() and np.min(lowest) < best)


def known(options: Mapping[str, Any], *names: str) -> str:
    """Returns those of the given options that a run has, joined by "or".

    Args:
      options: the options of the run, by name, as in its `config.json`.
      *names: names of options, such as `--agent.replay.min-size`.
    """
    return " or ".join(name for name in names if _value(options, name) is not _ABSENT)


def _value(options: Mapping[str, Any], name: str) -> Any:
    value: Any = options
    for key in name.removeprefix("--").replace("-", "_").split("."):
        value = value.get(key, _ABSENT) if isinstance(value, Mapping) else _ABSENT
    return value


class _Cause(NamedTuple):
    """A figure that points to a cause.

    Attributes:
      figure: its name.
      low: it is one from here on.
      found: what to say; `x` is the figure, the others are names of figures.
      remedy: what to do with the options.
      options: those of them that the run has are named.
    """

    figure: str
    low: float
    found: str
    remedy: str
    options: Sequence[str]


_MORE = ("--agent.exploration-sigma", "--agent.exploration-epsilon", "--actors")
_RATES = ("--agent.replay.samples-per-insert", "--agent.critic-learning-rate")
_EDGE = "value support too small: {x:.0%} of the mass on its"
# The most telling one first.
_CAUSES = (
    _Cause("value_edge_mass_high", 0.1, f"{_EDGE} upper edge", "raise", ["--agent.value-max"]),
    _Cause("value_edge_mass_low", 0.1, f"{_EDGE} lower edge", "lower", ["--agent.value-min"]),
    _Cause(
        *("failed_share", _FAILED_ALL, "{x:.0%} of the evaluation episodes found almost no reward"),
        *("train for longer, or explore more with", _MORE),
    ),
    _Cause(
        *("failed_share", _FAILED_SOME),
        "{x:.0%} of the evaluation episodes failed while others reached {episode_return_max:.4g}",
        "some starts were never learned: explore more from them, or enlarge the policy, with",
        (*_MORE, "--agent.policy-layers"),
    ),
    _Cause(
        *("action_saturation", 0.8, "{x:.0%} of the policy's actions are at their bounds"),
        *("tanh passes no gradient there: raise", ["--agent.preactivation-penalty"]),
    ),
    _Cause(
        "relative_bias",
        0.5,
        "Q differs from the discounted returns observed ({discounted_return:.4g}) by {q_bias:+.4g}",
        *("lower", _RATES),
    ),
    _Cause("dormant_share", 0.5, "{x:.0%} of the critic's units are dormant", "lower", _RATES),
    _Cause(
        "wasted_batch_share",
        0.8,
        "importance weights leave {effective_batch_share:.0%} of each batch",
        *("lower", ["--agent.replay.priority-exponent"]),
    ),
)


def _causes(figures: Mapping[str, float], options: Mapping[str, Any]) -> Iterator[str]:
    """Yields the causes that the figures point to, the most telling one first."""
    known_figures = dict(figures)
    if "q_bias" in figures and "discounted_return" in figures:
        seen = max(abs(figures["discounted_return"]), 1.0)
        known_figures["relative_bias"] = abs(figures["q_bias"]) / seen
    known_figures["wasted_batch_share"] = 1.0 - figures.get("effective_batch_share", 1.0)
    told = set()
    for cause in _CAUSES:
        x = known_figures.get(cause.figure, 0.0)
        # If the option is not set, the edge is the bound that follows from the rewards: no return
        # lies beyond it.
        is_bound = "edge" in cause.figure and _value(options, cause.options[0]) is None
        if x < cause.low or cause.figure in told or is_bound:
            continue
        told.add(cause.figure)
        found, named = cause.found.format(x=x, **figures), known(options, *cause.options)
        yield f"{found}; {cause.remedy} {named}" if named else found


def explain(run_dir: Path, options: Mapping[str, object]) -> list[str]:
    """Returns where actors and learner spent their time, and the verdict.

    Args:
      run_dir: the run's directory.
      options: the options of the run, by name, as in its `config.json`.

    Returns:
      Lines; none unless both have recorded their time.
    """
    shares = read_shares(run_dir)
    lines = []
    for kind, split in parts(shares).items():
        words = [f"{part} {share:.0%}" for part, share in split.items()]
        lines.append(f"time of the {'actors' if kind == 'actor' else kind}: {', '.join(words)}")
    # In a very short run only one side has reported.
    if len(lines) < len(_KINDS):
        return []
    return [*lines, verdict(shares, options)]


def read_shares(run_dir: Path) -> dict[str, float]:
    """Returns the newest shares of time of a run, such as `actor_wait`; empty if there are none."""
    table = read_metrics(run_dir, "time")
    last = {name: float(column[-1]) for name, column in table.items() if len(column)}
    return {name: share for name, share in last.items() if math.isfinite(share)}


def parts(shares: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Divides shares of time by the kind of node.

    Args:
      shares: the shares from `read_shares`.

    Returns:
      "actor" and "learner" -> name of each part -> its share, the greatest first. A kind that has
      not reported, or spent hardly any time on these parts, is left out.
    """
    found = {}
    for kind in _KINDS:
        split = {
            name: shares[f"{kind}_{part}"]
            for part, name in _PART_NAMES.items()
            if f"{kind}_{part}" in shares
        }
        if sum(split.values()) > _NOTHING:
            found[kind] = dict(sorted(split.items(), key=lambda item: -item[1]))
    return found


def verdict(shares: Mapping[str, float], options: Mapping[str, object]) -> str:
    """Names the bottleneck, and the option that would help most.

    Args:
      shares: shares of time, such as `actor_wait`.
      options: the options of the run; `actors` is the current number.
    """
    slowest = find_bottleneck(shares.get("actor_wait", 0.0), shares.get("learner_wait", 0.0))
    if slowest == "learner":
        return f"bottleneck: the learner; {_for_learner(shares, options)}"
    if slowest == "actors":
        return f"bottleneck: the actors; {_for_actors(shares, options)}"
    if slowest == "replay":
        is_least = _value(options, "--agent.steps-per-call") in (1, _ABSENT)
        remedy = "" if is_least else "; try a smaller --agent.steps-per-call"
        return f"bottleneck: the replay or the processors, for which both wait{remedy}"
    return "bottleneck: none, actors and learner are both busy"


def find_bottleneck(actors: float, learner: float) -> Literal["actors", "learner", "replay"] | None:
    """Finds the slowest part of a program: one that waits much less than the other.

    Args:
      actors: share of time that the actors wait.
      learner: share of time that the learner waits.

    Returns:
      "replay" if both wait, and None if neither does.
    """
    if max(actors, learner) <= _WAITING_THRESHOLD:
        return None
    if min(actors, learner) > max(_WAITING_THRESHOLD, _MUCH_LESS * max(actors, learner)):
        return "replay"
    return "learner" if actors > learner else "actors"


def _for_learner(shares: Mapping[str, float], options: Mapping[str, object]) -> str:
    if shares.get("learner_save", 0.0) > _CHECKPOINTS:
        return "save less often (--checkpoint-seconds)"
    has_gpu = bool(gpus.visible())
    # Measured on an H200 (docs/speed.md): XLA gave 1.8 x the steps from state, 1.5 x from pixels.
    if has_gpu and options.get("replicas") == "1":
        return "--replicas single_device:xla lets XLA compile its steps, which is faster on GPUs"
    fewer = known(options, "--agent.replay.samples-per-insert")
    return (
        f"{'--replicas N on as many GPUs' if has_gpu else _GPU} makes its steps faster"
        f"{f'; a lower {fewer} takes fewer steps' if fewer else ''}"
    )


def _for_actors(shares: Mapping[str, float], options: Mapping[str, object]) -> str:
    slowest = max(_WORK, key=lambda part: shares.get(f"actor_{part}", 0.0))
    frame = options.get("frame")
    # What an environment draws by itself stays at "auto", and cannot be drawn faster.
    if slowest == "render" and isinstance(frame, Mapping) and frame.get("render") == "exact":
        return "--frame.render fast draws without shadows and reflections"
    # One call of the policy serves all environments of an actor.
    option = "envs_per_actor" if slowest == "policy" else "actors"
    number = options.get(option, 1)
    more = f"--{option.replace('_', '-')} {2 * number if isinstance(number, int) else 2}"
    if option == "actors" and options.get("launch") == "threads":
        more += " --launch processes"
    return f"the largest part of their work is {_PART_NAMES[slowest]}; try {more}"
