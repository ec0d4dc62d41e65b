"""The policy of a run: evaluated, or filmed."""

from pathlib import Path

from agents.environment_loop import evaluation_episode
from agents.policies import playing, video_file
from agents.policies.policy import AgentSource, restore
from rl_replicator.errors import UsageError
from rl_replicator.runs.run_directory import RunDirectory

_VIDEO = "evaluation.mp4"


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
    with policy.make_environment(seed) as environment:
        played = [
            evaluation_episode(environment, policy.actor, policy.max_actions)
            for _ in range(episodes)
        ]
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
    run.config()  # Raises if there is no run, before a directory is made.
    with video_file.film(path) as add:
        policy = restore(run, source)
        with policy.make_environment(seed) as environment:
            (total,) = playing.play(
                environment, policy.actor, policy.task, policy.max_actions, add, episodes=1
            )
    return path, total
