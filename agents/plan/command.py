"""The command `rl-replicator plan`: measures, predicts, and prints."""

import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.config import resolved
from agents.plan.deployment import Deployment, Hardware, deploy
from agents.plan.parts import Parts
from agents.runs.options import AgentOptions
from rl_replicator.errors import ConfigError, check_option
from rl_replicator.runs.plain_data import to_plain

if TYPE_CHECKING:
    from agents.plan.bound import Change, Prediction
    from agents.policies.policy import AgentSource

# Options of the agent on which the cost of its parts does not depend, or only as the model expects.
_FREE = ("agent.global_batch_size", "agent.replay.samples_per_insert", "agent.replay.min_size")
# Resources that are used less than this are left out.
_LEAST_LOAD = 0.005


def run(
    source: "AgentSource",
    options: AgentOptions,
    hardware: Hardware,
    path: Path | None,
    seconds: float,
) -> int:
    """Prints the plan.

    Args:
      source: makes the agent.
      options: the options of the run.
      hardware: its machines.
      path: file of the parts: read if it exists, otherwise written; None for neither.
      seconds: the duration of the measurement.

    Returns:
      Exit status 0.

    Raises:
      UsageError: bad input.
    """
    deployment = deploy(options, hardware)
    if path is not None:  # Before the measurement, which would otherwise be lost.
        check_option(path.parent.is_dir(), "parts", "a file in a folder that exists", path)
    spec = options.task.spec()  # An unknown environment is noticed before TensorFlow is imported.

    from agents.program import share_processors

    share_processors()  # Before TensorFlow's threads start.
    # Raises if batch, replicas, shards and rate limiter do not fit each other.
    config = resolved(options.agent, {}, options.task.action_repeat)
    agent = source.make_agent(config, spec)
    agent.make_tables(deployment.replicas, deployment.replay_shards)
    what = f"{source.name} on {options.env}{' from pixels' if options.pixels else ''}"
    settings = measured_settings(options)
    if path is not None and os.path.exists(path):
        parts = Parts.load(path, what, settings)
    else:
        from agents.plan import measurement

        print(f"measuring {what} ...", flush=True)
        parts = measurement.measure(
            source.make_agent,
            config,
            options.task,
            what,
            settings,
            seconds,
            deployment.replay_shards,
        )
        if path is not None:
            parts.save(path)
    from agents.plan import bound

    changes = bound.best_changes(
        parts, deployment, hardware, lambda changed: is_accepted(config, changed)
    )
    prediction = bound.predict(parts, deployment, hardware)
    print(*_measured(parts, deployment), *_assumed(hardware), sep="\n")
    print(*_predicted(prediction, hardware, options.steps), *_changed(changes), sep="\n")
    return 0


def is_accepted(config: Any, run: Deployment) -> bool:
    """Returns whether the replay and the batch would fit each other in a run.

    Args:
      config: the agent's hyper-parameters, except for the samples per insert.
      run: how the run is deployed, and its samples per insert.
    """
    from agents.replay.table import LearnerDemand, error_buffer

    try:
        demand = LearnerDemand(run.batch, config.steps_per_call, run.replicas)
        replay = dataclasses.replace(config.replay, samples_per_insert=run.samples_per_insert)
        error_buffer(replay, demand, replay.item_length, run.replay_shards)
    except ConfigError:
        return False
    return True


def measured_settings(options: AgentOptions) -> dict[str, Any]:
    """Returns the options on which the cost of the parts depends, by name.

    Args:
      options: the options of the run.
    """
    task = options.task
    plain = {"agent": options.agent, "wrap": task.wrap, "time_limit": task.time_limit}
    if task.pixels is not None:
        plain["frame"] = task.pixels
    return {name: value for name, value in _flat("", to_plain(plain)) if name not in _FREE}


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the settings within plain data."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{name}.{key}" if name else key, item)
    else:
        yield name, value


def _measured(parts: Parts, run: Deployment) -> Iterator[str]:
    """Yields what was measured, in processor time."""
    us = 1e6
    policy = parts.policy_call / run.envs_per_actor + parts.policy_row
    yield f"measured on {parts.machine}"
    yield _line("environment", f"{us * parts.environment:,.0f} us per action")
    yield _line("policy", f"{us * policy:,.0f} us per action")
    yield _line(
        "insertion",
        f"{us * parts.insert_actor:,.0f} us per transition in the actor, "
        f"{us * parts.insert_server:,.0f} us in the server, {parts.insert_bytes:,.0f} bytes",
    )
    yield _line(
        "sampling and priorities",
        f"{us * parts.sample_learner:,.1f} us per transition in the learner, "
        f"{us * parts.sample_server:,.1f} us in the server, {parts.sample_bytes:,.0f} bytes; "
        f"at most {1 / max(parts.sample_thread, 1e-9):,.0f} per second and stream",
    )
    yield _line(
        "learner step",
        f"{1e3 * parts.step_call:,.2f} ms, and {us * parts.step_row:,.1f} us for each of "
        f"{run.batch:,} transitions, on {parts.step_threads:.1f} processors; "
        f"{parts.gradient_bytes / 1e6:,.2f} MB of gradients",
    )
    yield _line(
        "fetch of the weights",
        f"{us * parts.fetch_learner:,.0f} us in the learner, {us * parts.fetch_actor:,.0f} us in "
        f"the actor, {parts.weight_bytes / 1e6:,.2f} MB; a small call {us * parts.call:,.0f} us",
    )


def _assumed(hardware: Hardware) -> Iterator[str]:
    """Yields the inputs of the model that cannot be measured on this machine."""
    yield "assumed, not measured"
    if (speedup := hardware.device_speedup) is not None:
        yield _line(
            f"--device-speedup {speedup:g}",
            "speed of a learner step on an accelerator, relative to this machine; there it takes "
            "no processor",
        )
        yield _line(
            f"--link-gbps {hardware.link_gbps:g}", "Gbit/s between accelerators of a machine"
        )
    if hardware.machines > 1:
        text = "Gbit/s of a machine, each direction"
        yield _line(f"--network-gbps {hardware.network_gbps:g}", text)
        text = "us for each message of an all-reduce"
        yield _line(f"--latency-us {hardware.latency_us:g}", text)
    text = "processors that a replay server keeps busy"
    yield _line(f"--server-cores {hardware.server_cores:g}", text)
    yield _line("processors", "each as fast as one of this machine")


def _predicted(prediction: "Prediction", hardware: Hardware, steps: int) -> Iterator[str]:
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
    yield f"saturates first: {prediction.resources[0].name}"
    loads = [(each.load(prediction.actions), each.name) for each in prediction.resources]
    for load, name in sorted(loads, key=lambda load: -load[0]):
        if load >= _LEAST_LOAD:
            yield f"  {load:4.0%} of {name}"


def _changed(changes: Sequence["Change"]) -> Iterator[str]:
    """Yields the options that would make the run faster."""
    yield "what would help" if changes else "no single option makes it faster"
    for change in changes:
        gain = f"{change.gain:.2f} x, " if math.isfinite(change.gain) else ""
        yield (
            f"  {change.option}: {gain}{change.prediction.environment_steps:,.0f} "
            f"environment steps/s; then {change.prediction.resources[0].name}"
        )


def _line(name: str, text: str) -> str:
    return f"  {name:<28} {text}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"
