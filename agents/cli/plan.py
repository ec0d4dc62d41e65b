"""`rl-replicator plan AGENT --env ENV [options]`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

SUMMARY = "predict a run's speed on other machines: plan d4pg --env cheetah:run --actors 64"

_COMMAND = "rl-replicator plan"


def run(args: Sequence[str]) -> int:
    """Measures the parts of a run, and prints the predicted speed and what limits it.

    Args:
      args: the words after `plan`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: after bad input.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    from agents.plan import command
    from agents.plan.deployment import Hardware
    from rl_replicator.cli import options, trainables
    from rl_replicator.errors import UsageError

    kind = _options_type()
    ours, theirs = options.divide(args, options.names_of(kind))
    chosen: Any = options.parse(kind, _COMMAND, ours)
    options.check_no_config(theirs, _COMMAND)
    trainable: Any = trainables.load(chosen.agent)
    if not hasattr(trainable, "make_agent"):
        raise UsageError(f"expected an agent after '{_COMMAND}', got {chosen.agent!r}, a learner")
    settings = trainable.parse(theirs, {})
    names = [field.name for field in dataclasses.fields(Hardware)]
    hardware = Hardware(**{name: getattr(chosen, name) for name in names})
    return command.run(trainable, settings, hardware, chosen.parts, chosen.measure_seconds)


def _options_type() -> Any:
    """Returns the dataclass of the options of the command itself."""
    import os

    import tyro

    from agents.plan.deployment import Hardware
    from rl_replicator.errors import check_option

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class PlanOptions(Hardware):
        """Predict how fast a run would be on other machines, and what would limit it.

        The parts of the run are measured on this machine. The options of 'rl-replicator train',
        such as --actors, --replicas and --replay-shards, describe the run (except --config,
        --deterministic and --env-engine envpool); the options here describe the machines.
        """

        agent: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="AGENT")]
        """The agent: d4pg, td3, sac or your own."""
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

    return PlanOptions
