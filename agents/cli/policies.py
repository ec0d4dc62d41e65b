"""The commands on trained policies: `play`, `video`, `record` and `zoo`."""

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from rl_replicator.cli import options, trainables
from rl_replicator.errors import UsageError, cannot_write, check_option
from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import stored_part
from rl_replicator.runs.run_directory import RunDirectory, folder_name
from rl_replicator.runs.statistics import number

if TYPE_CHECKING:
    from agents.policies.playing import Player
    from agents.task import Task

# Frames of the first episode of a policy in a zoo, side by side.
_PICTURE, _FRAMES = "episode.jpg", 6
# Packages whose code may run because a model card names it; "" stands for those of libraries.
_OURS = ("", "agents", "environments")


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


def play(args: Sequence[str]) -> int:
    """Plays a policy in a window, or records it as a video: play PATH"""
    chosen = options.parse(PlayOptions, "rl-replicator play", args)
    from agents.policies import playing

    if chosen.out is None and playing.has_display():
        player = opened(chosen.path, chosen.env, chosen.seed, chosen.best)
        with contextlib.closing(playing.Window(player.task.name)) as window:
            for total in player.play(window.show, chosen.episodes):
                print(f"return {number(total)} ({player.task.name})", flush=True)
        return 0
    out = chosen.out or Path("play.mp4")
    with playing.film(out) as add:
        player = opened(chosen.path, chosen.env, chosen.seed, chosen.best)
        returns = [number(total) for total in player.play(add, chosen.episodes)]
    print(f"film: return {', '.join(returns)} ({player.task.name}), {out}", flush=True)
    return 0


def opened(path: Path, env: str | None, seed: int, best: bool) -> "Player":
    """Returns a policy in an environment.

    Args:
      path: the directory of a run, or of an exported policy.
      env: the environment; None for the one in which the policy was trained.
      seed: seed of the environment.
      best: whether to take the checkpoint of a run with the best evaluation, not the newest.

    Raises:
      UsageError: if there is no policy, the environment does not fit it, or the card of an exported
        policy names modules of others.
    """
    import tree

    from agents.nodes.run_plan import EvaluationSchedule
    from agents.policies import exported
    from agents.policies.playing import Player
    from agents.policies.policy import load_policy

    policy: Any
    if not RunDirectory(path).exists or (path / exported.MODEL).exists():
        policy = exported.load(path)
        if best:
            raise UsageError(
                f"--best: expected a run directory with it, got {path}, an exported policy, which "
                "has one set of weights; leave --best out, or export with --best"
            )
        _check_trusted(policy.task, env)
        expected, actor = policy.task.spec(policy.form), policy.actor()
        most = policy.task.agent_steps(EvaluationSchedule().max_episode_steps)  # It stores none.
    else:
        policy = load_policy(path, best)
        expected, actor, most = policy.agent.environment_spec, policy.actor, policy.max_actions
    task = policy.task
    if env is not None:
        task = dataclasses.replace(task, name=env, recorded=None)
        found = task.spec()
        for kind in ("observations", "actions"):
            one, other = (
                tree.map_structure(lambda x: [*x.shape] or x.num_values, getattr(spec, kind))
                for spec in (expected, found)
            )
            if one != other:
                raise UsageError(
                    f"expected an environment with {kind} {one}, as the policy has them, got "
                    f"{other}; choose another --env"
                )
    return Player(task, task.make(seed), actor, most)


def _check_trusted(task: "Task", env: str | None) -> None:
    """Refuses to run modules that a model card names, unless the user names their environment."""
    from environments.catalogue import imported_module

    modules = {imported_module(name) for name in (task.name, *task.wrap)}
    foreign = sorted(module for module in modules if module.partition(".")[0] not in _OURS)
    if foreign and env != task.name:
        raise UsageError(
            f"expected --env {shlex.quote(task.name)}, because the policy's card names modules "
            f"that are not part of RL-Replicator ({', '.join(foreign)}), whose code would run; "
            "pass it if you trust them"
        )


@dataclasses.dataclass(frozen=True)
class VideoOptions:
    """Film an evaluation episode with the newest checkpoint of a run."""

    run_dir: options.RunDir
    """Directory of the run."""
    out: Path | None = None
    """The video, .mp4 or .gif. Default: evaluation.mp4 in the run's directory."""
    seed: int = 1000
    """Seed of the environment."""


def video(args: Sequence[str]) -> int:
    """Records a video of an evaluation episode: video RUN_DIR"""
    chosen = options.parse(VideoOptions, "rl-replicator video", args)
    RunDirectory(chosen.run_dir).config()  # Raises if there is no run, before a folder is made.
    out = chosen.out or chosen.run_dir / "evaluation.mp4"
    return play([str(chosen.run_dir), "--out", str(out), "--seed", str(chosen.seed)])


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """Record whole episodes of a run's policy, for 'train --prefill' or for other programs."""

    run_dir: options.RunDir
    """Directory of the run."""
    episodes: int = 100
    """Number of episodes."""
    format: Literal["minari"] = "minari"
    """Format of the dataset."""
    dataset: str | None = None
    """ID of the new dataset in Minari's folder, such as cartpole/expert-v0. Default: task and
    agent, such as cartpole-swingup-d4pg-v0."""
    seed: int = 1000
    """Seed of the first episode; each further episode has the next number."""
    best: bool = False
    """Use the checkpoint with the best evaluation during training, in place of the newest."""
    explore: bool = False
    """Explore as the actors of the run do."""

    def __post_init__(self) -> None:
        check_option(self.episodes >= 1, "episodes", "at least 1", self.episodes)
        last = 2**32 - self.episodes
        check_option(0 <= self.seed <= last, "seed", f"a number from 0 to {last}", self.seed)


def record(args: Sequence[str]) -> int:
    """Records episodes of a run's policy as a dataset: record RUN_DIR --episodes 100"""
    chosen = options.parse(RecordOptions, "rl-replicator record", args)
    from agents.datasets import minari_files, recording
    from agents.policies.policy import load_policy

    config = RunDirectory(chosen.run_dir).config()
    if "pixels" in config["identity"]:
        raise UsageError(
            f"expected a run from the state, got {chosen.run_dir}, which learns from pixels; "
            "Minari keeps frames as JPEG, which changes them"
        )
    dataset_id = chosen.dataset or minari_files.default_id(
        config["trainable"], config["identity"].get("env", "")
    )
    minari_files.check_new(dataset_id)
    policy = load_policy(chosen.run_dir, chosen.best)
    about = {
        "algorithm_name": config["trainable"],
        "description": f"Episodes of {config['trainable']} on {policy.task.name}.",
        minari_files.METADATA: {
            "config": config,
            "environment_steps": policy.environment_steps,
            "learner_steps": policy.learner_steps,
            "best": chosen.best,
            "explore": chosen.explore,
        },
    }
    episodes = recording.record(policy, chosen.episodes, chosen.seed, chosen.explore)
    action_spec = policy.agent.environment_spec.actions
    summary = minari_files.write(dataset_id, episodes, action_spec, about)
    print(f"dataset {dataset_id}: {summary}")
    return 0


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


def zoo(args: Sequence[str]) -> int:
    """Exports and measures the policies of runs: zoo RUN_DIR..."""
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


def _added(run_dir: Path, name: str, out: Path, chosen: ZooOptions) -> str:
    """Exports and measures the policy of a run; returns its row of the table."""
    import imageio.v2 as iio
    import numpy as np

    from agents.environment_loop import evaluation_episode
    from agents.policies import exported
    from agents.policies.playing import Player
    from agents.policies.policy import max_actions
    from rl_replicator.exports import formats

    trainable: Any = trainables.of_run(run_dir)
    model = trainable.exported(run_dir, chosen.best, chosen.license)
    facts = model.card.facts
    formats.write(model, "numpy", out / name)
    os.replace(out / name / "model.py", out / "model.py")  # One for all policies.
    # Measure what was written, in the same way as the evaluations of a run.
    policy = exported.load(out / name)
    most, frames = max_actions(RunDirectory(run_dir), policy.task), []
    with policy.task.make(chosen.seed) as environment:
        actor = policy.actor()
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


def _table(rows: Sequence[str], chosen: ZooOptions) -> str:
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
