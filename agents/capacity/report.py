"""The output of `rl-replicator plan`."""

import math
from collections.abc import Iterator, Sequence

from agents.capacity.changes import Change
from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.model import Prediction
from agents.capacity.parts import Parts
from agents.capacity.simulation import Simulated

# Resources that are used less than this are left out.
_LEAST_LOAD = 0.005
_ALMOST_ALL = 0.995


def lines(
    parts: Parts,
    deployment: Deployment,
    hardware: Hardware,
    prediction: Prediction,
    simulated: Simulated | None,
    changes: Sequence[Change],
    steps: int,
) -> Iterator[str]:
    """Yields the report.

    Args:
      parts: what was measured.
      deployment: how the run is deployed.
      hardware: on which machines.
      prediction: the bound on its speed.
      simulated: the result of its simulation; None if it is predicted to take no actions.
      changes: options that would make it faster.
      steps: environment steps of the run.
    """
    yield f"measured on {parts.machine}"
    for name, text in _measured(parts, deployment):
        yield f"  {name:<28} {text}"
    yield "assumed, not measured"
    for option, text in _assumed(hardware):
        yield f"  {option:<28} {text}"
    yield f"predicted at most for {_spread(deployment, hardware)}"
    yield (
        f"  {prediction.environment_steps:,.0f} environment steps/s, "
        f"{prediction.learner_steps:,.1f} learner steps/s, "
        f"{_duration(steps, prediction.environment_steps)} to {steps:,} environment steps"
    )
    yield f"saturates first: {prediction.bottleneck.name}"
    loads = [
        (resource.load(prediction.actions), resource.name) for resource in prediction.resources
    ]
    for load, name in sorted(loads, key=lambda load: -load[0]):
        if load >= _LEAST_LOAD:
            yield f"  {load:4.0%} of {name}"
    if prediction.evaluated < _ALMOST_ALL:
        yield (
            f"at that rate, the evaluator plays {prediction.evaluated:.0%} of the scheduled "
            "evaluations, and leaves out the others; choose a larger --evaluation.every or fewer "
            "--evaluation.episodes"
        )
    if simulated is None:
        name = prediction.bottleneck.name
        yield f"not simulated: without any action, the run needs more of {name} than is available"
    else:
        yield from _simulated(simulated, prediction)
    yield "what would help" if changes else "no single option makes it faster"
    for change in changes:
        gain = f"{change.gain:.2f} x, " if math.isfinite(change.gain) else ""
        yield (
            f"  {change.option}: {gain}{change.prediction.environment_steps:,.0f} "
            f"environment steps/s; then {change.prediction.bottleneck.name}"
        )


def _simulated(run: Simulated, bound: Prediction) -> Iterator[str]:
    """Yields what the simulation adds to the bound."""
    repeat = bound.deployment.action_repeat
    yield (
        f"simulated for {run.seconds:.3g} s: {repeat * run.actions:,.0f} environment steps/s "
        f"({run.actions / bound.actions:.0%}), {run.learner_steps:,.1f} learner steps/s"
    )
    for who, shares in (("an actor", run.actor), ("the learner", run.learner)):
        parts = [f"{share:.0%} {what}" for what, share in shares.items() if share >= _LEAST_LOAD]
        yield f"  {who}: {', '.join(parts)}"
    if math.isnan(run.weight_age):
        yield "  actors queue up for weights for longer than was simulated, so their age is unknown"
        return
    yield (
        f"  actors use weights that are {run.weight_age:,.0f} learner steps old, 5% of the time "
        f"more than {run.weight_age_95:,.0f}"
    )


def _measured(parts: Parts, run: Deployment) -> Iterator[tuple[str, str]]:
    """Yields what was measured, in processor time."""
    us = 1e6
    policy = parts.policy_call / run.envs_per_actor + parts.policy_row
    yield "environment", f"{us * parts.environment:,.0f} us per action"
    yield "policy", f"{us * policy:,.0f} us per action"
    yield (
        "insertion",
        f"{us * parts.insert_actor:,.0f} us per transition in the actor, "
        f"{us * parts.insert_server:,.0f} us in the server, {parts.insert_bytes:,.0f} bytes",
    )
    yield (
        "sampling and priorities",
        f"{us * parts.sample_learner:,.1f} us per transition in the learner, "
        f"{us * parts.sample_server:,.1f} us in the server, {parts.sample_bytes:,.0f} bytes; "
        f"at most {1 / max(parts.sample_thread, 1e-9):,.0f} per second and stream",
    )
    yield (
        "learner step",
        f"{1e3 * parts.step_call:,.2f} ms, and {us * parts.step_row:,.1f} us for each of "
        f"{run.batch:,} transitions, on {parts.step_threads:.1f} processors; "
        f"{parts.gradient_bytes / 1e6:,.2f} MB of gradients",
    )
    yield (
        "fetch of the weights",
        f"{us * parts.fetch_learner:,.0f} us in the learner, {us * parts.fetch_actor:,.0f} us in "
        f"the actor, {parts.weight_bytes / 1e6:,.2f} MB; a small call {us * parts.call:,.0f} us",
    )


def _assumed(hardware: Hardware) -> Iterator[tuple[str, str]]:
    """Yields the inputs of the model that cannot be measured on this machine."""
    speedup = hardware.device_speedup
    if speedup is not None:
        yield (
            f"--device-speedup {speedup:g}",
            "speed of a learner step on an accelerator, relative to this machine; there "
            "it takes no processor",
        )
        yield f"--link-gbps {hardware.link_gbps:g}", "Gbit/s between accelerators of a machine"
    if hardware.machines > 1:
        yield f"--network-gbps {hardware.network_gbps:g}", "Gbit/s of a machine, each direction"
        yield f"--latency-us {hardware.latency_us:g}", "us for each message of an all-reduce"
    yield f"--server-cores {hardware.server_cores:g}", "processors that a replay server keeps busy"
    yield "processors", "each as fast as one of this machine"


def _spread(run: Deployment, hardware: Hardware) -> str:
    parts = [
        f"{_count(run.actors, 'actor')} of {_count(run.envs_per_actor, 'environment')}",
        _count(run.replicas, "replica"),
        _count(run.replay_shards, "replay server"),
    ]
    if run.caches:
        parts.append(_count(run.caches, "cache"))
    parts.append(f"{_count(hardware.machines, 'machine')} of {hardware.cores:g} processors")
    return ", ".join(parts) + (", in threads" if run.in_threads else "")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


def _duration(steps: int, rate: float) -> str:
    if rate <= 0:
        return "forever"
    return f"{steps / rate / 60:,.1f} minutes"
