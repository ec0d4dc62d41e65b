"""A trainable that takes no time: its figure is a function of its options."""

import dataclasses
import os
import signal
import time
from pathlib import Path

from rl_replicator.errors import UsageError
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.metrics import MetricWriter, read_metrics
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.experiments.own_trainable import OwnTrainable

NAME = "tests.rl_replicator.experiments.hill:hill"


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of the hill."""

    height: int = 3
    """Height of the top."""


@dataclasses.dataclass(frozen=True)
class HillOptions:
    """How far the climb is from the top."""

    run_dir: Path | None = None
    """Run directory."""
    place: float = 0.5
    """Where the climb ends; 0.25 is the top. Below 0 it fails, unless the sweep has a file
    `place_is_there`."""
    kind: str = "high"
    """high or low: whether the figure is the height or the distance; blind: none."""
    seed: int = 1
    """Added to the height."""
    shape: Shape = Shape()
    """Shape of the hill."""
    env_timeout: float = 300.0
    """Has no effect."""
    evaluations: int = 4
    """Length of the run."""
    wait_at: int | None = None
    """TrialEvaluation after which a run waits, while there is a file `hold`."""
    waits_beyond: float | None = None
    """Distance from the top beyond which a run waits for its end after its first evaluation."""
    end: str = ""
    """disk: it fails as on a full disk; kill: it kills itself after each evaluation; die: before
    the first one."""


class Hill(OwnTrainable):
    """Writes the files of a run."""

    options_type = HillOptions

    def train(self, options):
        if options.place < 0 and not (options.run_dir.parents[1] / "place_is_there").exists():
            raise UsageError("there is no such place")
        ended = []
        signal.signal(signal.SIGINT, lambda *_: ended.append(True))
        is_high = options.kind == "high"
        score = Score("evaluation", "figure", is_high).plain() if options.kind != "blind" else None
        run = RunDirectory(options.run_dir)
        plain = to_plain(options)
        with run.opened(NAME, {"options": plain}):
            run.describe(NAME, {"options": plain}, plain, score)
            done = len(read_metrics(run.path, "evaluation").get("steps", ()))
            with (options.run_dir / "started.txt").open("a") as file:
                file.write(f"{done} {os.getppid()}\n")
            height = options.shape.height + options.seed
            figure = height - abs(options.place - 0.25) if is_high else abs(options.place - 0.25)
            writer = MetricWriter(run.path, "steps")
            if options.end == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            for index in range(done + 1, options.evaluations + 1):
                writer.write("evaluation", 100 * index, {"figure": figure, "index": index})
                while index == options.wait_at and Path("hold").exists() and not ended:
                    time.sleep(0.05)
                if options.end == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if options.end == "disk":
                    print("no space left")
                    return 74
                beyond = abs(options.place - 0.25) > (options.waits_beyond or 1e9)
                deadline = time.monotonic() + 300
                while beyond and not ended and time.monotonic() < deadline:
                    time.sleep(0.05)
                if ended and index < options.evaluations:
                    return 130
            writer.close()
        return 0


hill = Hill()
