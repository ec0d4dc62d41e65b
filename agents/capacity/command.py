"""What `rl-replicator plan` does: measures, predicts, and prints."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from agents.capacity.hardware import Deployment, Hardware
from agents.capacity.parts import Parts
from agents.config import at_repeat
from agents.runs.options import AgentOptions
from rl_replicator.errors import ConfigError, check_option

if TYPE_CHECKING:
    from agents.policies.policy import AgentSource


def deploy(options: AgentOptions, hardware: Hardware) -> Deployment:
    """Returns how the options of a run spread it.

    Args:
      options: the options of the run.
      hardware: its machines.

    Raises:
      ConfigError: if they do not fit each other.
    """
    check_option(not options.deterministic, "deterministic", "False for a plan", True)
    engine = options.env_engine
    check_option(engine == "dm_control", "env_engine", "dm_control for a plan", engine)
    is_group, replicas = _replicas(options.replicas)
    in_threads = options.launch == "threads"
    if hardware.machines > 1:
        check_option(options.launch == "ray", "launch", "ray on several machines", options.launch)
    if is_group and in_threads:
        raise ConfigError(
            f"--replicas {options.replicas}: expected --launch processes or ray, got threads"
        )
    return Deployment(
        actors=options.actors,
        envs_per_actor=options.envs_per_actor,
        in_threads=in_threads,
        replicas=replicas,
        learner_processes=replicas if is_group else 1,
        replay_shards=options.replay_shards,
        caches=options.caches,
        batch=options.agent.global_batch_size,
        samples_per_insert=options.agent.replay.samples_per_insert,
        action_repeat=options.task.action_repeat,
        evaluation=options.evaluation.episodes / options.evaluation.every,
    )


def _replicas(text: str) -> tuple[bool, int]:
    """Returns whether the replicas of `--replicas` are processes, and how many they are."""
    if text == "single_device":
        return False, 1
    found = re.fullmatch(r"(?:(multi_device|multi_worker):)?([1-9][0-9]{0,5})", text, re.ASCII)
    if not found:
        raise ConfigError(
            f"--replicas: expected a number, multi_device:N or multi_worker:N, got {text!r}"
        )
    return found[1] == "multi_worker", int(found[2])


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
      path: file of the parts: read if it is there, otherwise written; None for neither.
      seconds: the duration of the measurement.

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
    parts = _known_parts(path, what)
    if parts is None:
        from agents.capacity import measurement

        print(f"measuring {what} ...", flush=True)
        parts = measurement.measure(source.make_agent, agent_config, options.task, what, seconds)
        if path is not None:
            parts.save(path)
    from agents.capacity import changes, model, report

    prediction = model.predict(parts, deployment, hardware)
    better = changes.best_changes(parts, deployment, hardware)
    for line in report.lines(parts, deployment, hardware, prediction, better, options.steps):
        print(line)
    return 0


def _known_parts(path: Path | None, what: str) -> Parts | None:
    """Returns the parts in a file; None if they are yet to be measured."""
    if path is None:
        return None
    # Before the measurement, which would be lost.
    check_option(path.parent.is_dir(), "parts", "a file in a folder that exists", path)
    if not path.exists():
        return None
    parts = Parts.load(path)
    check_option(
        parts.what == what,
        "parts",
        f"the parts of {what}",
        f"{path} of {parts.what}; choose another file",
    )
    return parts
