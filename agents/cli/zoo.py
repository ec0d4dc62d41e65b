"""`rl-replicator zoo RUN_DIR... --out FOLDER`."""

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SUMMARY = "export and measure the policies of runs: zoo RUN_DIR..."

# Frames of the first episode, side by side.
_PICTURE, _FRAMES = "episode.jpg", 6


def run(args: Sequence[str]) -> int:
    """Exports policies, each with a model card and a picture, and writes a table of their returns.

    Args:
      args: the words after `zoo`.

    Returns:
      The exit status.

    Raises:
      UsageError: if an option is wrong, a run has no policy, or two have the same task and
        agent. No folder is left then.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    from rl_replicator.cli import options
    from rl_replicator.errors import UsageError, cannot_write, check_option
    from rl_replicator.runs import atomic_file

    @dataclasses.dataclass(frozen=True)
    class ZooOptions:
        """Export the policies of runs for NumPy, and play each to measure its return."""

        run_dirs: options.RunDirs
        """Directories of runs of agents, one for each task and agent."""
        out: Path
        """Folder to create, with a folder for each policy, and README.md with the table."""
        episodes: int = 10
        """Episodes of each measurement; frames show the first one."""
        seed: int = 1000
        """Seed of the environment."""
        best: bool = False
        """Use the checkpoints with the best evaluation during training, not the newest."""
        license: str | None = None
        """Licence named in the model cards. Default: none."""

        def __post_init__(self) -> None:
            check_option(self.episodes >= 1, "episodes", "at least 1", self.episodes)

    chosen = options.parse(ZooOptions, "rl-replicator zoo", args)
    if not chosen.run_dirs:
        raise UsageError("expected directories of runs after 'rl-replicator zoo', got none")
    try:
        if chosen.out.exists():
            raise UsageError(
                f"--out: expected a new folder, got {chosen.out}, which exists; choose another"
            )
        named = _named(chosen.run_dirs)
        # It gets its name only once it is complete, so that a failed command can be repeated.
        with atomic_file.making_folder(chosen.out) as new:
            rows = [_added(run_dir, name, new, chosen) for name, run_dir in named.items()]
            (new / "README.md").write_text(_table(rows, chosen))
    except OSError as error:
        raise cannot_write(f"--out: cannot write {chosen.out}: {error}", error) from error
    print(f"zoo {chosen.out}")
    return 0


def _named(run_dirs: Sequence[Path]) -> dict[str, Path]:
    """Returns the runs by the names of their folders.

    Raises:
      UsageError: if one is not a run of an agent, or two would have the same folder.
    """
    from rl_replicator.cli import trainables
    from rl_replicator.errors import UsageError
    from rl_replicator.runs.plain_data import stored_part
    from rl_replicator.runs.run_directory import RunDirectory, folder_name

    named: dict[str, Path] = {}
    for run_dir in run_dirs:
        if not hasattr(trainables.of_run(run_dir), "make_agent"):
            raise UsageError(f"expected a run of an agent, got {run_dir}, which trains a learner")
        identity = RunDirectory(run_dir).config()["identity"]
        env, agent = (stored_part(identity, name, str) for name in ("env", "trainable"))
        name = folder_name(f"{env}-{agent}")
        if name in named:
            raise UsageError(
                f"expected one run for each task and agent, got {named[name]} and {run_dir}, both "
                f"{name}; leave one out"
            )
        named[name] = run_dir
    return named


def _added(run_dir: Path, name: str, out: Path, chosen: Any) -> str:
    """Exports and measures the policy of a run; returns its row of the table."""
    import imageio.v2 as iio
    import numpy as np

    from agents.environment_loop import evaluation_episode
    from agents.policies import exported
    from agents.policies.playing import Player
    from agents.policies.policy import max_actions
    from rl_replicator.cli import trainables
    from rl_replicator.exports import formats
    from rl_replicator.runs.run_directory import RunDirectory
    from rl_replicator.runs.statistics import number

    trainable: Any = trainables.of_run(run_dir)
    model = trainable.exported(run_dir, chosen.best, chosen.license)
    facts = model.card.facts
    formats.write(model, "numpy", out / name)
    os.replace(out / name / "model.py", out / "model.py")  # One for all policies.
    # Measure what was written, in the same way as the evaluations of a run.
    policy = exported.load(out / name)
    most, frames = max_actions(RunDirectory(run_dir), policy.task), []
    with policy.task.make(chosen.seed) as environment:
        actor = policy.actor(policy.task, environment)
        player = Player(policy.task, environment, actor, most)
        returns = list(player.play(lambda frame: frames.append(frame[::2, ::2]), episodes=1))
        played = [evaluation_episode(environment, actor, most) for _ in range(chosen.episodes - 1)]
    shown = [frames[i] for i in np.linspace(0, len(frames) - 1, _FRAMES).astype(int)]
    iio.imwrite(out / name / _PICTURE, np.concatenate(shown, axis=1))
    returns += [episode.episode_return for episode in played if episode is not None]
    measured = (
        f"{number(sum(returns) / len(returns))} ({number(min(returns))} to {number(max(returns))})"
    )
    print(f"{name}: return {measured}", flush=True)
    cells = (facts["task"], facts["agent"], facts["environment steps"], measured)
    return f"| [{name}]({name}/README.md) | {' | '.join(cells)} | [frames]({name}/{_PICTURE}) |"


def _table(rows: Sequence[str], chosen: Any) -> str:
    """Returns the table as Markdown."""
    from agents.nodes.evaluator import counted

    return "\n".join(
        [
            "# Trained policies",
            "",
            "Each folder holds the weights of a policy (`model.npz`), its model card, and frames "
            'of an episode. `model.py` needs only NumPy: `Model("NAME/model.npz")`. Returns are '
            f"the mean (lowest to highest) of {counted(chosen.episodes)} that the exported policy "
            f"played, seed {chosen.seed}; the frames show the first one.",
            "",
            "| policy | task | agent | environment steps | return | episode |",
            "|---|---|---|---:|---:|---|",
            *rows,
            "",
        ]
    )
