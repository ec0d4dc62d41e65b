"""`rl-replicator play PATH`."""

import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

SUMMARY = "play a policy in a window, or record it as a video: play PATH"


def run(args: Sequence[str]) -> int:
    """Plays a run's policy, or an exported one, and prints the return of each episode.

    Args:
      args: the words after `play`.

    Returns:
      The exit status.

    Raises:
      UsageError: if an option is wrong, or there is no policy.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from agents.policies import playing, video_file
    from rl_replicator.cli import options
    from rl_replicator.errors import check_option
    from rl_replicator.runs.statistics import number

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
    task, environment, actor, most = _opened(chosen)

    def play(show: playing.Show) -> None:
        for total in playing.play(environment, actor, task, most, show, chosen.episodes):
            print(f"return {number(total)} ({task.name})", flush=True)

    if chosen.out is None and playing.has_display():
        with contextlib.closing(playing.Window(task.name)) as window:
            play(window.show)
        return 0
    output = chosen.out or Path("play.mp4")
    with video_file.film(output) as add:
        play(add)
    print(f"video {output}")
    return 0


def _opened(chosen: Any) -> tuple[Any, Any, Any, int]:
    """Returns the task, its environment, the actor, and the most actions per episode."""
    from agents.nodes.run_plan import EvaluationSchedule
    from agents.policies import exported
    from rl_replicator.errors import UsageError
    from rl_replicator.runs.run_directory import RunDirectory

    if not RunDirectory(chosen.path).exists or (chosen.path / exported.MODEL).exists():
        policy = exported.load(chosen.path)
        if chosen.best:
            raise UsageError(
                f"--best: expected a run directory with it, got {chosen.path}, an exported policy, "
                "which has one set of weights; leave --best out, or export with --best"
            )
        task = _task(policy.task, chosen.env)
        environment = task.make(chosen.seed)
        most = task.agent_steps(EvaluationSchedule().max_episode_steps)  # Exports store none.
        return task, environment, policy.actor(task, environment), most
    from agents.policies.policy import load_policy

    trained = load_policy(chosen.path, chosen.best)
    task = _task(trained.task, chosen.env)
    environment = task.make(chosen.seed)
    _check(trained.task, task)
    return task, environment, trained.actor, trained.max_actions


def _task(trained: Any, name: str | None) -> Any:
    return trained if name is None else dataclasses.replace(trained, name=name)


def _check(trained: Any, played: Any) -> None:
    from rl_replicator.errors import UsageError

    expected, found = trained.spec(), played.spec()
    for kind in ("observations", "actions"):
        one, other = getattr(expected, kind).shape, getattr(found, kind).shape
        if one != other:
            raise UsageError(
                f"expected an environment with {kind} {list(one)}, as the policy has them, got "
                f"{list(other)}; choose another --env"
            )
