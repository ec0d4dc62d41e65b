"""`rl-replicator check-env ENV`."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated

SUMMARY = "play an environment and list what is wrong with it: check-env module:function"


def run(args: Sequence[str]) -> int:
    """Examines an environment and prints one line per finding.

    Args:
      args: the words after `check-env`.

    Returns:
      Exit status: 0 if agents can train in it, otherwise 1.

    Raises:
      UsageError: if an option is wrong.
      EnvironmentNameError: if there is no such environment or wrapper.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    import environments
    from environments import examination
    from rl_replicator.cli import options
    from rl_replicator.errors import check_option

    @dataclasses.dataclass(frozen=True)
    class CheckEnvOptions:
        """Play an environment with random actions and list what is wrong with it.

        It checks specs, bounds, non-finite numbers, seeding, the ends of episodes and rendering;
        each line says what to do.
        """

        env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
        """The environment, as for `train --env`."""
        wrap: tuple[str, ...] = ()
        """Wrappers, as for `train`."""
        time_limit: int | None = None
        """Steps after which an episode is truncated."""
        pixels: bool = False
        """Examine rendered frames, as observed by `train --pixels`, in place of the state. A step
        is then an action, which is repeated as in training."""
        max_steps: int = 10_000
        """Steps within which an episode must end."""

        def __post_init__(self) -> None:
            check_option(self.max_steps >= 1, "max_steps", "at least 1", self.max_steps)

    chosen = options.parse(CheckEnvOptions, "rl-replicator check-env", args)

    frame = environments.PixelConfig() if chosen.pixels else None

    def make(seed: int) -> environments.Environment | environments.PixelEnvironment:
        return environments.make(chosen.env, seed, frame, chosen.wrap, chosen.time_limit)

    wrong = 0
    for finding in examination.examine(make, chosen.max_steps):
        wrong += finding.verdict == examination.WRONG
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        text = " ".join(finding.text.split())
        print(f"{finding.verdict:<5} {finding.subject}: {text}{remedy}", flush=True)
    print(f"\nWrong: {wrong}." if wrong else "\nAgents can train in it.")
    return 1 if wrong else 0
