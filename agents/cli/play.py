"""`rl-replicator play PATH`."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from agents.policies.playing import Player, Show

SUMMARY = "play a policy in a window, or record it as a video: play PATH"


def run(args: Sequence[str]) -> int:
    """Plays a run's policy, or an exported one, and prints the return of each episode.

    Args:
      args: the words after `play`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, or there is no policy.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from rl_replicator.cli import options
    from rl_replicator.errors import check_option

    @dataclasses.dataclass(frozen=True)
    class PlayOptions:
        """Play a policy in a window; without a display, record a video."""

        path: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
        """A run directory, or a folder made by 'rl-replicator export --format numpy'."""
        env: str | None = None
        """Environment to play in. Default: the one in which the policy was trained."""
        out: Path | None = None
        """Video to write, .mp4 or .gif. Default: a window, or play.mp4 if there is no display."""
        episodes: int = 1
        """Number of episodes."""
        seed: int = 1000
        """Seed of the environment."""
        best: bool = False
        """Use the checkpoint of a run with the best evaluation, in place of the newest."""

        def __post_init__(self) -> None:
            check_option(self.episodes >= 1, "episodes", "at least 1", self.episodes)

    chosen = options.parse(PlayOptions, "rl-replicator play", args)
    from agents.policies import playing

    if chosen.out is None and playing.has_display():
        player = opened(chosen.path, chosen.env, chosen.seed, chosen.best)
        with contextlib.closing(playing.Window(player.task.name)) as window:
            _play(player, window.show, chosen.episodes)
        return 0
    out = chosen.out or Path("play.mp4")
    with playing.film(out) as add:
        player = opened(chosen.path, chosen.env, chosen.seed, chosen.best)
        _play(player, add, chosen.episodes)
    print(f"video {out}")
    return 0


def opened(path: Path, env: str | None, seed: int, best: bool) -> "Player":
    """Returns a policy in an environment.

    Args:
      path: the directory of a run, or of an exported policy.
      env: the environment; None for the one in which the policy was trained.
      seed: seed of the environment.
      best: whether to take the checkpoint of a run with the best evaluation, not the newest.

    Raises:
      UsageError: if there is no policy, or the environment does not fit it.
    """
    from agents.nodes.run_plan import EvaluationSchedule
    from agents.policies import exported
    from agents.policies.playing import Player
    from agents.policies.policy import load_policy
    from rl_replicator.errors import UsageError
    from rl_replicator.runs.run_directory import RunDirectory

    if not RunDirectory(path).exists or (path / exported.MODEL).exists():
        policy = exported.load(path)
        if best:
            raise UsageError(
                f"--best: expected a run directory with it, got {path}, an exported policy, which "
                "has one set of weights; leave --best out, or export with --best"
            )
        task = policy.task if env is None else dataclasses.replace(policy.task, name=env)
        environment = task.make(seed)
        most = task.agent_steps(EvaluationSchedule().max_episode_steps)  # Exports store none.
        return Player(task, environment, policy.actor(task, environment), most)
    trained = load_policy(path, best)
    task = trained.task if env is None else dataclasses.replace(trained.task, name=env)
    expected, found = trained.task.spec(), task.spec()
    for kind in ("observations", "actions"):
        one, other = getattr(expected, kind).shape, getattr(found, kind).shape
        if one != other:
            raise UsageError(
                f"expected an environment with {kind} {list(one)}, as the policy has them, got "
                f"{list(other)}; choose another --env"
            )
    return Player(task, task.make(seed), trained.actor, trained.max_actions)


def _play(player: "Player", show: "Show", episodes: int) -> None:
    from rl_replicator.runs.statistics import number

    for total in player.play(show, episodes):
        print(f"return {number(total)} ({player.task.name})", flush=True)
