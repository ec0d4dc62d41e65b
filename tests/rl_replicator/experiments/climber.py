"""A trainable with a state that is saved: its height grows by its rate at every step."""

import dataclasses
import signal
import time
from pathlib import Path

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.runs.evaluations import Score
from rl_replicator.runs.metrics import MetricWriter
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.experiments.own_trainable import OwnTrainable

NAME = "tests.rl_replicator.experiments.climber:climber"
EVERY = 100


@dataclasses.dataclass(frozen=True)
class ClimberOptions:
    """How fast it climbs."""

    run_dir: Path | None = None
    """Where to."""
    rate: float = 0.25
    """Growth of the height in a step."""
    layers: tuple[int, ...] = (8,)
    """A size."""
    width: int = 8
    """Another one."""
    patience: float = 1.0
    """A number that a checkpoint fixes."""
    seed: int = 1
    """Height at the start."""
    steps: int = 400
    """Length of the run."""
    together: int = 1
    """Number of trials that wait for each other before their first step. If there are several, none
    takes its last step before one has been copied, however slowly their driver compares them."""


class Climber(OwnTrainable):
    """Writes the files of a run."""

    options_type = ClimberOptions

    def may_change(self, option):
        return option != "patience"

    def train(self, options):
        ended = []
        signal.signal(signal.SIGINT, lambda *_: ended.append(True))
        plain = to_plain(options)
        identity = {"options": {name: plain[name] for name in ("rate", "seed")}}
        run = RunDirectory(options.run_dir)
        with run.opened(NAME, identity):
            run.describe(
                NAME, identity, plain, Score("evaluation", "height", end=options.steps).plain()
            )
            checkpointer = Checkpointer(run.checkpoints, keep=100)
            state = {"step": 0, "height": float(options.seed)}
            if checkpointer.latest() is not None:
                checkpointer.restore({"state": JsonPart(dict, state.update)})
            writer = MetricWriter(run.path, "steps", resume_step=state["step"])
            sweep = run.path.parent.parent
            while not ended and len(list(sweep.glob("trial-*/*/config.json"))) < options.together:
                time.sleep(0.02)
            while state["step"] < options.steps and not ended:
                is_last = options.together > 1 and state["step"] + EVERY == options.steps
                while is_last and not ended and not any(sweep.glob("trial-*/lineage.json")):
                    time.sleep(0.02)
                state["step"] += EVERY
                state["height"] += EVERY * options.rate
                writer.write("evaluation", state["step"], {"height": state["height"]})
                # A training that takes time, so that trials can be compared before their end.
                end = time.monotonic() + 1
                while not ended and time.monotonic() < end:
                    time.sleep(0.02)
            parts = {"state": JsonPart(lambda: state, lambda _: None)}
            checkpointer.save(state["step"], parts)
            writer.close()
        return 130 if ended else 0


climber = Climber()
