"""The policy of a run: evaluated, or filmed."""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import imageio.v3 as iio
import numpy as np

from agents.environment_loop import evaluation_episode, interact
from agents.plan.evaluation import EvaluationSchedule
from agents.policies.policy import AgentSource, restore
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

_VIDEO = "evaluation.mp4"
_HEIGHT, _WIDTH = 240, 320
_FRAMES_PER_SECOND = 30
# The video of an episode of 1000 environment steps takes about ten seconds.
_STEPS_PER_FRAME = 1000 // (10 * _FRAMES_PER_SECOND)
_MAX_EPISODE_STEPS = EvaluationSchedule().max_episode_steps


def evaluate(
    source: AgentSource, run_dir: Path, episodes: int, seed: int, best: bool = False
) -> list[float]:
    """Plays episodes with the policy of a run.

    Args:
      source: makes the agent.
      run_dir: the run's directory.
      episodes: number of episodes.
      seed: seed of the environment.
      best: whether to take the checkpoint with the best evaluation, not the newest.

    Returns:
      The return of each episode.

    Raises:
      UsageError: if there is no run or no checkpoint, or `episodes` is less than 1.
    """
    if episodes < 1:
        raise UsageError(f"--episodes: expected at least 1, got {episodes}")
    policy = restore(RunDirectory(run_dir), source, best)
    environment = policy.make_environment(seed)
    max_actions = policy.task.agent_steps(_MAX_EPISODE_STEPS)
    played = [evaluation_episode(environment, policy.actor, max_actions) for _ in range(episodes)]
    return [episode.episode_return for episode in played if episode is not None]


def film(source: AgentSource, run_dir: Path, output: Path | None, seed: int) -> tuple[Path, float]:
    """Films one episode of the newest checkpoint's policy.

    Args:
      source: makes the agent.
      run_dir: the run's directory.
      output: an .mp4 or .gif. Default: in the run's directory.
      seed: seed of the environment.

    Returns:
      The file, and the return of the episode.

    Raises:
      UsageError: if there is no run or no checkpoint, or the file cannot be written.
    """
    run = RunDirectory(run_dir)
    path = output or run.path / _VIDEO
    if path.suffix not in (".mp4", ".gif"):
        raise UsageError(f"--output: expected a file named .mp4 or .gif, got {path}")
    run.config()  # Raises if there is no run, before a directory is made.
    with _replacement(path) as partial:
        policy = restore(run, source)
        task, environment = policy.task, policy.make_environment(seed)
        steps_per_frame = max(1, _STEPS_PER_FRAME // task.action_repeat)
        total, frames = 0.0, []
        timesteps = interact(environment, policy.actor)
        for step, timestep in enumerate(
            itertools.islice(timesteps, task.agent_steps(_MAX_EPISODE_STEPS) + 1)
        ):
            total += float(timestep.reward or 0.0)
            if step % steps_per_frame == 0:
                frames.append(environment.render(_HEIGHT, _WIDTH))
            if timestep.last():
                break
        _write_video(partial, frames)
    return path, total


@contextlib.contextmanager
def _replacement(path: Path) -> Iterator[Path]:
    """Yields a new file beside `path`, which takes its place if all goes well."""
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()  # Before the episode is played, so that the user need not wait for this.
    except OSError as error:
        raise UsageError(
            f"--output: cannot write to {path.parent}: {error}; choose another directory"
        ) from None
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _write_video(path: Path, frames: list[np.ndarray]) -> None:
    """Writes the frames and reads them back: an encoder may fail on a full disk in silence.

    Raises:
      UsageError: if the file is not complete.
    """
    try:
        if path.suffix == ".mp4":
            iio.imwrite(path, frames, fps=_FRAMES_PER_SECOND)
            found = sum(1 for _ in iio.imiter(path, plugin="FFMPEG"))
        else:
            iio.imwrite(path, frames, duration=1000 / _FRAMES_PER_SECOND, loop=0)
            found = path.stat().st_size
    except (OSError, ValueError, RuntimeError) as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"cannot write the video: {text}; is the disk full?") from error
    if not found:
        raise UsageError("cannot write the video: the file is empty; is the disk full?")
