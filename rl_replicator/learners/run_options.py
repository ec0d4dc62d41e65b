"""The options of a run, whatever learner it trains."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from rl_replicator.errors import check_option
from rl_replicator.runs.profiler import parse_span


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """How to run a learner, whatever it learns."""

    replicas: str = "1"
    """Replicas: a number of devices, or a string of `rl_replicator.make` such as multi_worker."""
    run_dir: Path | None = None
    """Directory of the run; an existing run is continued. Default: a new one under `runs/`."""
    resume: bool = False
    """Continue the newest run with the same settings under `runs/`."""
    steps_per_call: int = 10
    """Steps in one compiled call, for a learner with a single step function."""
    checkpoint_seconds: float = 60.0
    """Seconds between checkpoints; longer if a checkpoint takes more than 5 % of that."""
    track: tuple[str, ...] = ()
    """Trackers for metrics, besides CSV files and TensorBoard: `wandb`, `mlflow`."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep; the one with the best evaluation is kept, too."""
    evaluation_seconds: float = 3600.0
    """Maximum seconds of an evaluation; a longer one ends the run with an error."""
    open_ports: bool = False
    """Allow ports that other machines can reach without a password: TensorFlow's port in a job on
    several machines, see SECURITY.md."""
    deterministic: bool = False
    """Make runs bitwise reproducible, which is slower."""
    profile_steps: str | None = None
    """Steps to profile for TensorBoard, START:END."""
    config: Annotated[Any, tyro.conf.arg(name="")] = None
    """Settings of the learner: a dataclass of its own."""

    def __post_init__(self) -> None:
        for name in ("steps_per_call", "keep_checkpoints"):
            value = getattr(self, name)
            check_option(value >= 1, name, "at least 1", value)
        for name in ("checkpoint_seconds", "evaluation_seconds"):
            seconds = getattr(self, name)
            check_option(seconds > 0, name, "more than 0", seconds)
        if self.profile_steps is not None:
            parse_span(self.profile_steps)
