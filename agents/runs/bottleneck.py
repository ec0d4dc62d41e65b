"""What a run spent its time on, and which option would help most."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from agents.runs.advice import known
from rl_replicator.processes import gpus
from rl_replicator.runs.metrics import read_metrics

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
# The kinds of an actor's work, as named in the verdict.
_WORK = {
    "environment": "the environment",
    "render": "rendering",
    "policy": "the policy",
    "insert": "insertion into the replay",
}
_CHECKPOINTS = 0.1
# Shares that add up to no more than this are meaningless, and would be shown as 0 %.
_NOTHING = 0.01
# Units of a layer from which bfloat16 is faster on every machine with fast bfloat16.
_WIDE = 512
_GPU = "a GPU, or --replicas N on as many devices,"


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
    slowest = find(shares.get("actor_wait", 0.0), shares.get("learner_wait", 0.0))
    if slowest == "learner":
        return f"bottleneck: the learner; {_for_learner(shares, options)}"
    if slowest == "actors":
        return f"bottleneck: the actors; {_for_actors(shares, options)}"
    if slowest == "replay":
        smaller = known(options, "--agent.steps-per-call")
        remedy = f"; try a smaller {smaller}" if smaller else ""
        return f"bottleneck: the replay or the processors, for which both wait{remedy}"
    return "bottleneck: none, actors and learner are both busy"


def find(actors: float, learner: float) -> Literal["actors", "learner", "replay"] | None:
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
    agent = options.get("agent")
    if not isinstance(agent, Mapping):
        agent = {}
    has_gpu = bool(gpus.visible())
    # Measured on an H200 (docs/speed.md): XLA gave 1.8 x the steps from state, 1.5 x from pixels.
    if has_gpu and options.get("replicas") == "1":
        return "--replicas single_device:xla lets XLA compile its steps, which is faster on GPUs"
    if _gains_from_bfloat16(agent) and _has_fast_bfloat16():
        return "--agent.precision bfloat16 is faster on this machine"
    fewer = known(options, "--agent.replay.samples-per-insert")
    return (
        f"{'--replicas N on as many GPUs' if has_gpu else _GPU} makes its steps faster"
        f"{f'; a lower {fewer} takes fewer steps' if fewer else ''}"
    )


def _gains_from_bfloat16(agent: Mapping[str, Any]) -> bool:
    if agent.get("precision") != "float32":
        return False
    layers = [*agent.get("policy_layers", ()), *agent.get("critic_layers", ())]
    return "encoder" in agent or max(layers, default=0) >= _WIDE


def _has_fast_bfloat16() -> bool:
    from rl_replicator.layers import precision  # Imports TensorFlow, which few verdicts need.

    return precision.resolve("auto") == "bfloat16"


def _for_actors(shares: Mapping[str, float], options: Mapping[str, object]) -> str:
    slowest = max(_WORK, key=lambda part: shares.get(f"actor_{part}", 0.0))
    frame = options.get("frame")
    if slowest == "render" and isinstance(frame, Mapping) and frame.get("render") != "fast":
        return "--frame.render fast draws without shadows and reflections"
    # One call of the policy serves all environments of an actor.
    option = "envs_per_actor" if slowest == "policy" else "actors"
    number = options.get(option, 1)
    more = f"--{option.replace('_', '-')} {2 * number if isinstance(number, int) else 2}"
    if option == "actors" and options.get("launch") == "threads":
        more += " --launch processes"
    return f"the largest part of their work is {_WORK[slowest]}; try {more}"
