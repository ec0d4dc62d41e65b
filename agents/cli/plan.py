"""`rl-replicator plan AGENT --env ENV [options]`: measures, predicts, and prints."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from agents.config import resolved
from agents.plan import bound
from agents.plan.bound import Deployment, Hardware, Prediction, deploy
from agents.plan.parts import Parts
from agents.runs.options import AgentOptions
from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError, check_option
from rl_replicator.runs.plain_data import flat, to_plain

_COMMAND = "rl-replicator plan"
# Options of the agent on which the cost of its parts does not depend, or only as the model expects.
_FREE = ("agent.global_batch_size", "agent.replay.samples_per_insert", "agent.replay.min_size")
# Resources that are used less than this are left out.
_LEAST_LOAD = 0.005


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions(Hardware):
    """Predict how fast a run would be on other machines, and what would limit it.

    The parts of the run are measured on this machine. The options of 'rl-replicator train',
    such as --actors, --replicas and --replay-shards, describe the run (except --config,
    --deterministic, --offline and --env-engine envpool); the options here describe the machines.
    """

    agent: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="AGENT")]
    """The agent: d4pg, td3, sac, crr, dqn, mrq, or your own with a replay."""
    cores: float = float(len(os.sched_getaffinity(0)))
    """Processors of each machine, as fast as those of this one."""
    parts: Path | None = None
    """File of the measured parts: read if it exists, otherwise written."""
    measure_seconds: float = 30.0
    """Approximate duration of the measurements, after start-up and compilation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        seconds, expected = self.measure_seconds, "more than 0 and at most 3600"
        check_option(0 < seconds <= 3600, "measure_seconds", expected, seconds)


def plan(args: Sequence[str]) -> int:
    """Predicts a run's speed on other machines: plan d4pg --env cheetah:run --actors 64"""
    ours, theirs = options.divide(args, options.names_of(PlanOptions))
    chosen = options.parse(PlanOptions, _COMMAND, ours)
    options.check_not_given(theirs, ["--config"], _COMMAND)
    trainable: Any = trainables.load(chosen.agent)
    if not hasattr(trainable, "make_agent"):
        raise UsageError(f"expected an agent after '{_COMMAND}', got {chosen.agent!r}, a learner")
    settings = trainable.parse(theirs, {})
    deployment = deploy(settings, chosen)
    if chosen.parts is not None:  # Before the measurement, which would otherwise be lost.
        is_there = chosen.parts.parent.is_dir()
        check_option(is_there, "parts", "a file in a folder that exists", chosen.parts)
    parts = known_parts(trainable, settings, deployment, chosen.parts, chosen.measure_seconds)
    show(parts, deployment, chosen, settings.steps)
    return 0


def known_parts(
    source: Any, chosen: AgentOptions, run: Deployment, path: Path | None, seconds: float
) -> Parts:
    """Reads the parts from a file, or measures them.

    Args:
      source: makes the agent.
      chosen: the options of the run.
      run: how it is deployed.
      path: the file; it is written if it does not exist. None for none.
      seconds: the duration of the measurement.
    """
    spec = chosen.task.spec()  # An unknown environment is noticed before TensorFlow is imported.
    from agents.program import share_processors

    share_processors()  # Before TensorFlow's threads start.
    # Raises if batch, replicas, shards and rate limiter do not fit each other.
    config: Any = resolved(chosen.agent, {}, chosen.task.action_repeat)
    source.make_agent(config, spec).make_tables(run.replicas, run.replay_shards)
    settings = measured_settings(source.name, chosen)
    if path is not None and os.path.exists(path):
        return Parts.load(path, settings)
    from agents.plan import measurement

    print(f"measuring {source.name} on {chosen.env} ...", flush=True)
    parts = measurement.measure(
        source.make_agent, config, chosen.task, settings, seconds, run.replay_shards
    )
    if path is not None:
        parts.save(path)
    return parts


def measured_settings(agent: str, chosen: AgentOptions) -> Mapping[str, Any]:
    """Returns the options on which the cost of the parts depends, by name.

    Args:
      agent: name of the agent.
      chosen: the options of the run.
    """
    task = chosen.task
    plain = {"AGENT": agent, "env": task.name, "agent": chosen.agent, "wrap": task.wrap}
    plain |= {"time_limit": task.time_limit, "frame": task.pixels}
    plain |= {"action_repeat": task.action_repeat}
    return {name: value for name, value in flat(to_plain(plain)).items() if name not in _FREE}


def show(parts: Parts, run: Deployment, hardware: Hardware, steps: int) -> None:
    """Prints what was measured and assumed, and the prediction."""
    print(f"measured on {parts.machine}")
    print(*(f"  {name:<23} {text}" for name, text in _measured(parts, run).items()), sep="\n")
    print(f"assumed: {', '.join(_assumed(hardware))}, processors as fast as one of this machine")
    print(*_predicted(bound.predict(parts, run, hardware), hardware, steps), sep="\n")


def _measured(parts: Parts, run: Deployment) -> dict[str, str]:
    """Returns what was measured, in processor time."""
    us = 1e6
    policy = parts.policy_call / run.envs_per_actor + parts.policy_row
    streams = 1 / max(parts.sample_thread, 1e-9)
    return {
        "environment": f"{us * parts.environment:,.0f} us per action",
        "policy": f"{us * policy:,.0f} us per action",
        "insertion": f"{us * parts.insert_actor:,.0f} us per transition in the actor, "
        f"{us * parts.insert_server:,.0f} us in the server, {parts.insert_bytes:,.0f} bytes",
        "sampling and priorities": f"{us * parts.sample_learner:,.1f} us per transition in the "
        f"learner, {us * parts.sample_server:,.1f} us in the server, {parts.sample_bytes:,.0f} "
        f"bytes; at most {streams:,.0f} per second and stream",
        "learner step": f"{1e3 * parts.step_call:,.2f} ms, and {us * parts.step_row:,.1f} us for "
        f"each of {run.batch:,} transitions, on {parts.step_threads:.1f} processors; "
        f"{parts.gradient_bytes / 1e6:,.2f} MB of gradients",
        "fetch of the weights": f"{us * parts.fetch_learner:,.0f} us in the learner, "
        f"{us * parts.fetch_actor:,.0f} us in the actor, {parts.weight_bytes / 1e6:,.2f} MB; "
        f"a small call {us * parts.call:,.0f} us",
    }


def _assumed(hardware: Hardware) -> Iterator[str]:
    """Yields the options that stand for what cannot be measured on this machine."""
    names = ["server_cores"]
    names += ["device_speedup", "link_gbps"] if hardware.device_speedup is not None else []
    names += ["network_gbps", "latency_us"] if hardware.machines > 1 else []
    for name in names:
        yield f"--{name.replace('_', '-')} {getattr(hardware, name):g}"


def _predicted(prediction: Prediction, hardware: Hardware, steps: int) -> Iterator[str]:
    """Yields the bound, and the use of each resource at this rate."""
    run, rate = prediction.run, prediction.environment_steps
    spread = [
        _count(run.actors, "actor") + " of " + _count(run.envs_per_actor, "environment"),
        _count(run.replicas, "replica"),
        _count(run.replay_shards, "replay server"),
        *([_count(run.caches, "cache")] if run.caches else []),
        f"{_count(hardware.machines, 'machine')} of {hardware.cores:g} processors",
        *(["in threads"] if run.in_threads else []),
    ]
    minutes = f"{steps / rate / 60:,.1f} minutes" if rate > 0 else "forever"
    yield f"predicted at most for {', '.join(spread)}"
    yield (
        f"  {rate:,.0f} environment steps/s, {prediction.learner_steps:,.1f} learner steps/s, "
        f"{minutes} to {steps:,} environment steps"
    )
    first, *others = prediction.resources
    yield f"saturates first: {first.name}; what moves it: {first.moved_by or 'nothing'}"
    loads = [(each.load(prediction.actions), each) for each in (first, *others)]
    for load, each in sorted(loads, key=lambda load: -load[0]):
        if load >= _LEAST_LOAD:
            yield f"  {load:4.0%} of {each.name:<40} {each.moved_by}".rstrip()


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
