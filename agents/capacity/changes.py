"""Which option would make a run faster, and by how much."""

import dataclasses
import math
from collections.abc import Callable, Iterator

from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.model import Prediction, predict
from agents.capacity.parts import Parts

# A smaller gain is not worth an option.
_LEAST_GAIN = 0.02
# Speedup that is suggested for a learner on processors.
_SPEEDUP = 10.0


@dataclasses.dataclass(frozen=True)
class Change:
    """A change of one option.

    Attributes:
      option: the option as users type it.
      gain: environment steps per second with it, relative to those without; infinite if there are
        none without it.
      prediction: the prediction of the run with it.
    """

    option: str
    gain: float
    prediction: Prediction


def best_changes(
    parts: Parts,
    deployment: Deployment,
    hardware: Hardware,
    accepts: Callable[[Deployment], bool],
    most: int = 3,
) -> list[Change]:
    """Tries options, each by itself.

    Args:
      parts: what the parts of the run cost.
      deployment: how it is deployed.
      hardware: on which machines.
      accepts: returns whether the replay of a run with another deployment would be accepted.
      most: number of changes to return.

    Returns:
      The changes that make the run faster, the best one first.
    """
    before = predict(parts, deployment, hardware).actions
    found = []
    for option, changed, machines in _candidates(deployment, hardware):
        if not accepts(changed):
            continue
        after = predict(parts, changed, machines)
        gain = after.actions / before if before > 0 else math.inf
        if after.actions > 0 and gain >= 1.0 + _LEAST_GAIN:
            found.append(Change(option, gain, after))
    return sorted(found, key=lambda change: -change.gain)[:most]


def _candidates(run: Deployment, hardware: Hardware) -> Iterator[tuple[str, Deployment, Hardware]]:
    """Yields changes of one option each, mostly to twice its value."""
    for name in ("actors", "envs_per_actor", "replay_shards", "replicas"):
        value = 2 * getattr(run, name)
        changed = dataclasses.replace(run, **{name: value})
        text = str(value)
        if name == "replicas" and run.learner_processes > 1:
            changed = dataclasses.replace(changed, learner_processes=2 * run.learner_processes)
            text = f"multi_worker:{changed.learner_processes}"
        if run.actors * run.envs_per_actor % changed.replay_shards == 0:
            yield f"--{name.replace('_', '-')} {text}", changed, hardware
    if run.in_threads:
        yield "--launch processes", dataclasses.replace(run, in_threads=False), hardware
    else:
        caches = max(1, 2 * run.caches)
        if caches <= run.actors:
            yield f"--caches {caches}", dataclasses.replace(run, caches=caches), hardware
    if hardware.machines > 1:
        machines = 2 * hardware.machines
        yield f"--machines {machines}", run, dataclasses.replace(hardware, machines=machines)
    for name in ("cores", "network_gbps"):
        if name == "cores" or hardware.machines > 1:
            double = 2 * getattr(hardware, name)
            option = f"--{name.replace('_', '-')} {double:g}"
            yield option, run, dataclasses.replace(hardware, **{name: double})
    speedup = 2 * hardware.device_speedup if hardware.device_speedup else _SPEEDUP
    faster = dataclasses.replace(hardware, device_speedup=speedup)
    yield f"--device-speedup {speedup:g}", run, faster
    samples = run.samples_per_insert / 2
    fewer = dataclasses.replace(run, samples_per_insert=samples)
    yield (
        f"--agent.replay.samples-per-insert {samples:g} (fewer learner steps per action)",
        fewer,
        hardware,
    )
