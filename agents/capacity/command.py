"""The command `rl-replicator plan`: measures, predicts, and prints."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.parts import Parts
from agents.config import OffPolicyConfig, at_repeat
from agents.nodes.run_plan import group_replicas, learner_processes
from agents.runs.options import AgentOptions
from rl_replicator.errors import ConfigError, UsageError, check_option
from rl_replicator.runs.plain_data import to_plain

if TYPE_CHECKING:
    from agents.policies.policy import AgentSource


def deploy(options: AgentOptions, hardware: Hardware) -> Deployment:
    """Returns the deployment that the options of a run describe.

    Args:
      options: the options of the run.
      hardware: its machines.

    Raises:
      ConfigError: if they do not fit each other, or the agent has no replay.
    """
    agent = options.agent
    if not isinstance(agent, OffPolicyConfig):
        raise ConfigError(
            f"expected an agent whose config is an agents.config.OffPolicyConfig, got "
            f"{type(agent).__name__}: a plan needs its batch and its replay"
        )
    check_option(not options.deterministic, "deterministic", "False for a plan", True)
    engine = options.env_engine
    check_option(engine == "dm_control", "env_engine", "dm_control for a plan", engine)
    processes = learner_processes(options.replicas, options.launch)
    # The GPUs of this machine are irrelevant to the machines of the prediction.
    gpus = options.learner_gpus or 0
    in_threads = options.launch == "threads"
    if hardware.machines > 1:
        check_option(options.launch == "ray", "launch", "ray on several machines", options.launch)
    return Deployment(
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        in_threads=in_threads,
        replicas=group_replicas(processes, gpus) if processes > 1 else _devices(options.replicas),
        learner_processes=processes,
        replay_shards=options.replay_shards,
        caches=options.caches,
        batch=agent.global_batch_size,
        samples_per_insert=agent.replay.samples_per_insert,
        action_repeat=options.task.action_repeat,
        evaluation=options.evaluation.episodes / options.evaluation.every,
        max_episode_actions=options.task.agent_steps(options.evaluation.max_episode_steps),
        item_length=agent.replay.item_length,
        max_in_flight_items=agent.replay.max_in_flight_items,
        steps_per_call=agent.steps_per_call,
    )


def _devices(text: str) -> int:
    """Returns the number of replicas in one process."""
    if text == "single_device":
        return 1
    found = re.fullmatch(r"(?:multi_device:)?([1-9][0-9]{0,5})", text, re.ASCII)
    if not found:
        raise ConfigError(
            f"--replicas: expected a number, multi_device:N or multi_worker:N, got {text!r}"
        )
    return int(found[1])


def run(
    source: "AgentSource",
    options: AgentOptions,
    hardware: Hardware,
    path: Path | None,
    seconds: float,
    simulated_seconds: float,
) -> int:
    """Prints the plan.

    Args:
      source: makes the agent.
      options: the options of the run.
      hardware: its machines.
      path: file of the parts: read if it exists, otherwise written; None for neither.
      seconds: the duration of the measurement.
      simulated_seconds: the time to simulate.

    Returns:
      Exit status 0.

    Raises:
      UsageError: bad input.
    """
    deployment = deploy(options, hardware)
    agent_config = at_repeat(options.agent, options.task.action_repeat)
    spec = options.task.spec()  # An unknown environment is noticed before TensorFlow is imported.

    from agents.runs.launching import share_processors

    share_processors()  # Before TensorFlow's threads start.
    agent = source.make_agent(agent_config, spec)
    # Raises if batch, replicas, shards and rate limiter do not fit each other.
    agent.make_tables(deployment.replicas, deployment.replay_shards)
    what = f"{source.name} on {options.env}{' from pixels' if options.pixels else ''}"
    settings = measured_settings(options)
    parts = _known_parts(path, what, settings)
    if parts is None:
        from agents.capacity import measurement

        print(f"measuring {what} ...", flush=True)
        parts = measurement.measure(
            source.make_agent,
            agent_config,
            options.task,
            what,
            settings,
            seconds,
            deployment.replay_shards,
        )
        if path is not None:
            parts.save(path)
    from agents.capacity import changes, model, report, simulation

    prediction = model.predict(parts, deployment, hardware)
    ahead = samples_ahead(agent_config, deployment)
    simulated = None
    if prediction.actions > 0:
        simulated = simulation.simulate(parts, deployment, hardware, ahead, simulated_seconds)
    accepts = functools.partial(is_accepted, agent_config)
    better = changes.best_changes(parts, deployment, hardware, accepts)
    for line in report.lines(
        parts, deployment, hardware, prediction, simulated, better, options.steps
    ):
        print(line)
    return 0


def samples_ahead(config: Any, deployment: Deployment) -> float:
    """Returns the tolerance of the rate limiters of all shards, in sampled transitions.

    Args:
      config: the agent's hyper-parameters.
      deployment: how the run is deployed.

    Raises:
      ConfigError: if the replay and the batch do not fit each other.
    """
    from agents.replay.table import LearnerDemand, error_buffer

    run, shards = deployment, deployment.replay_shards
    demand = LearnerDemand(run.batch, run.steps_per_call, run.replicas)
    return shards * error_buffer(config.replay, demand, run.item_length, shards)


def is_accepted(config: Any, deployment: Deployment) -> bool:
    """Returns whether the replay and the batch would fit each other in a run.

    Args:
      config: the agent's hyper-parameters, except for the samples per insert.
      deployment: how the run is deployed, and its samples per insert.
    """
    samples = deployment.samples_per_insert
    try:
        replay = dataclasses.replace(config.replay, samples_per_insert=samples)
        samples_ahead(dataclasses.replace(config, replay=replay), deployment)
    except ConfigError:
        return False
    return True


# Options of the agent on which the cost of its parts does not depend, or only as the model expects.
_FREE = ("agent.global_batch_size", "agent.replay.samples_per_insert", "agent.replay.min_size")


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


def _known_parts(path: Path | None, what: str, settings: Mapping[str, Any]) -> Parts | None:
    """Returns the parts in a file; None if they are yet to be measured."""
    if path is None:
        return None
    # Checked before the measurement, which would otherwise be lost.
    try:
        check_option(path.parent.is_dir(), "parts", "a file in a folder that exists", path)
        is_new = not path.exists()
    except OSError as error:
        raise UsageError(f"--parts: cannot read {path}: {error}") from error
    if is_new:
        Parts.check_writable(path)
        return None
    parts = Parts.load(path)
    check_option(
        parts.what == what,
        "parts",
        f"the parts of {what}",
        f"{path} of {parts.what}; choose another file",
    )
    for name in sorted({*settings, *parts.settings}):
        ours, theirs = settings.get(name), parts.settings.get(name)
        check_option(
            ours == theirs or json.dumps(ours) == json.dumps(theirs),  # NaN differs from itself.
            "parts",
            f"parts that were measured with {name.replace('_', '-')} {ours}",
            f"{path}, measured with {theirs}; choose another file",
        )
    return parts
