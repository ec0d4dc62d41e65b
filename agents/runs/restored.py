"""A trained policy, taken back from its run directory: to judge it, or to film it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dm_env
import imageio.v3 as iio
from acme import core

from agents.environment_loop import episode_return, interact
from agents.learning.variables import WeightsPart
from agents.task import Task
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from agents.runs.command import AgentCommand

_HEIGHT, _WIDTH = 240, 320
_FRAMES_PER_SECOND = 30
# A film shows an episode of 1000 environment steps in about ten seconds.
_STEPS_PER_FRAME = 1000 // (10 * _FRAMES_PER_SECOND)


def evaluate(command: "AgentCommand", run_dir: Path, episodes: int, seed: int) -> list[float]:
    """Plays episodes with the newest checkpoint's policy. See `AgentCommand.evaluate`."""
    if episodes < 1:
        raise UsageError(f"--episodes: expected at least 1, got {episodes}")
    _, environment, actor = _restore(command, RunDirectory(run_dir), seed)
    returns = [episode_return(environment, actor, lambda: False) for _ in range(episodes)]
    return [total for total in returns if total is not None]


def film(
    command: "AgentCommand", run_dir: Path, output: Path | None, seed: int
) -> tuple[Path, float]:
    """Films one episode of the newest checkpoint's policy. See `AgentCommand.video`.

    Returns:
      The file, and the episode's return.
    """
    run = RunDirectory(run_dir)
    path = output or run.video
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--output: expected a file named .mp4 or .gif, got {path}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output: cannot write to {path.parent}: {error}") from None
    task, environment, actor = _restore(command, run, seed)
    steps_per_frame = max(1, _STEPS_PER_FRAME // task.action_repeat)
    total, frames = 0.0, []
    for step, timestep in enumerate(_episode(environment, actor)):
        total += float(timestep.reward or 0.0)
        if step % steps_per_frame == 0:
            frames.append(environment.render(_HEIGHT, _WIDTH))
    if path.suffix == ".mp4":
        iio.imwrite(path, frames, fps=_FRAMES_PER_SECOND)
    else:
        iio.imwrite(path, frames, duration=1000 / _FRAMES_PER_SECOND, loop=0)
    return path, total


def _episode(environment: dm_env.Environment, actor: core.Actor) -> Iterator[dm_env.TimeStep]:
    for timestep in interact(environment, actor):
        yield timestep
        if timestep.last():
            return


def _restore(command: "AgentCommand", run: RunDirectory, seed: int) -> tuple[Task, Any, core.Actor]:
    """The task of a run, its environment, and the policy of its newest checkpoint."""
    identity = run.config()["identity"]
    checkpointer = Checkpointer(run.checkpoints)
    if checkpointer.latest() is None:
        raise UsageError(
            f"expected a checkpoint in {run.checkpoints}, found none yet; train for longer, or "
            "continue the run with --run-dir"
        )
    task, config = command.restore(identity)
    agent = command.make_agent(config, task.spec())
    weights = WeightsPart()
    checkpointer.restore({"weights": weights})
    return task, task.make(seed=seed), agent.make_evaluator(weights)
