"""`rl-replicator record RUN_DIR --episodes N`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

SUMMARY = "record episodes of a run's policy as a dataset: record RUN_DIR --episodes 100"


def run(args: Sequence[str]) -> int:
    """Plays the policy of a run and writes the episodes as a dataset.

    Args:
      args: the words after `record`.

    Returns:
      Exit status 0.

    Raises:
      UsageError: if an option is wrong, there is no policy, or the dataset cannot be written.
    """
    # Imported here because `rl-replicator --help` imports this module for its summary.
    import tyro

    from rl_replicator.cli import options
    from rl_replicator.errors import check_option

    @dataclasses.dataclass(frozen=True)
    class RecordOptions:
        """Record whole episodes of a run's policy, for 'train --prefill' or for other programs."""

        run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_DIR")]
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
            last = 2**32 - max(self.episodes, 1)
            check_option(0 <= self.seed <= last, "seed", f"a number from 0 to {last}", self.seed)

    chosen = options.parse(RecordOptions, "rl-replicator record", args)
    return _record(chosen)


def _record(chosen: Any) -> int:
    from agents.datasets import minari_files, recording
    from agents.policies.policy import load_policy
    from rl_replicator.errors import UsageError
    from rl_replicator.runs.run_directory import RunDirectory

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
    summary = minari_files.write(dataset_id, episodes, about)
    print(f"dataset {dataset_id}: {summary}")
    return 0
