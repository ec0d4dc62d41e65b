"""The D4PG learner from state, part by part, up to the whole program, on `cartpole:swingup`.

    PYTHONPATH=. python bench/learner_program.py

Prints, and writes bench/results/learner_program.json.
All sides run in one process, in turn, each once a round, with the defaults of `rl-replicator train
d4pg`. "step" takes one stored batch again and again; "step, sampling" takes batches from a table
whose limiter never blocks; "learner" writes priorities and publishes weights too; "program" does
all of that while an actor explores and inserts, held by the limiter at 128 samples an insert. A
limiter also holds that actor while the others are measured. A processor millisecond counts all
threads: on a busy machine it says more than the clock.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import reverb
import tensorflow as tf
from acme import specs

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.environment_loop import explore
from agents.learning.replay_learner import ReplayLearner
from agents.nodes.wait_log import StoppedError
from agents.replay.input import make_input_fn
from agents.replay.table import LearnerDemand
from agents.replay.transitions import TABLE, TransitionLayout
from agents.runs.launching import share_processors

TASK = "cartpole:swingup"
FILL_STEPS, TOTAL_STEPS = 2000, 60_000
PACKAGES = ("numpy", "tensorflow", "dm-reverb", "dm-control", "mujoco")
BARE = "step"


class Bench:
    """A filled table of each kind, and learners on them."""

    def __init__(self) -> None:
        share_processors()  # Before TensorFlow's threads start.
        self.spec = specs.make_environment_spec(environments.make(TASK, seed=0))
        self.config = D4PGConfig()
        self.agent = D4PG(self.config, self.spec)
        self.replicator = rr.make("single_device")
        self.over = threading.Event()
        self.servers: list[reverb.Server] = []

    def serve(self, is_limited: bool) -> str:
        """Starts a replay server; returns its address."""
        (table,) = self.agent.make_tables(num_replicas=1)
        if not is_limited:
            table = reverb.Table(
                TABLE,
                reverb.selectors.Prioritized(self.config.replay.priority_exponent),
                reverb.selectors.Fifo(),
                max_size=self.config.replay.max_size,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=TransitionLayout(self.spec).signature,
            )
        server = reverb.Server([table])
        self.servers.append(server)
        return f"localhost:{server.port}"

    def act(self, address: str, source: Any, steps: int | None) -> None:
        """Explores; `steps` None: until the benchmark is over."""

        def on_wait(seconds: float) -> None:
            if self.over.is_set():
                raise StoppedError

        adder = self.agent.make_adder(reverb.Client(address), on_wait)
        environment = environments.make(TASK, seed=1)
        context = ExplorationContext(np.random.default_rng(0))
        actor = self.agent.make_actor(source, [adder], [context])
        try:
            for taken, _ in enumerate(explore([environment], actor)):
                if taken == steps or self.over.is_set():
                    break
            adder.finish()
        except StoppedError:
            pass
        adder.close()

    def learner(self, input_fn: Callable[[Any], tf.data.Dataset]) -> ReplayLearner:
        """Makes a learner that writes no priorities."""
        with self.replicator.scope():
            module = self.agent.make_module(self.replicator, TOTAL_STEPS)
        return ReplayLearner(module, self.replicator, input_fn, priorities=None, steps_per_call=16)

    def sides(self) -> dict[str, Callable[[], None]]:
        """Returns one call of the learner on each side, by name."""
        free, limited = self.serve(False), self.serve(True)
        full = self.agent.make_learner(self.replicator, [free], TOTAL_STEPS)
        self.act(free, full, FILL_STEPS)
        demand = LearnerDemand(self.config.global_batch_size, self.config.steps_per_call, 1)
        input_fn = make_input_fn([free], TransitionLayout(self.spec), demand)
        batch = next(iter(input_fn(None)))
        bare = self.learner(lambda context: tf.data.Dataset.from_tensors(batch).repeat())
        sampling = self.learner(input_fn)
        program = self.agent.make_learner(self.replicator, [limited], TOTAL_STEPS)
        self.thread = threading.Thread(target=self.act, args=(limited, program, None))
        self.thread.start()
        self.learners = [full, bare, sampling, program]
        return {
            BARE: bare._step,
            "step, sampling": sampling._step,
            "learner": full.step,
            "program": program.step,
        }

    def close(self) -> None:
        """Ends all threads."""
        self.over.set()
        for learner in self.learners:
            learner.close()
        self.thread.join()


def rows(unit: str, samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Returns one row per side; ratios are to the bare step, round by round."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
    result = []
    for name, figures in samples.items():
        ratios = np.divide(figures, samples[BARE])
        row = {"figure": name, "unit": unit, "samples": [round(x, 4) for x in figures]}
        row |= {"median": float(np.median(figures)), "ratio": float(np.median(ratios))}
        row["ratio_spread"] = [float(ratios.min()), float(ratios.max())]
        result.append({**row, **about})
    return result


def main() -> None:
    """Prints the figures and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=12, help="calls of 16 steps in a sample")
    parser.add_argument("--output", type=Path, default=Path("bench/results/learner_program.json"))
    options = parser.parse_args()
    bench = Bench()
    sides = bench.sides()
    for call in sides.values():
        for _ in range(3):
            call()
    wall: dict[str, list[float]] = {name: [] for name in sides}
    cpu: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.rounds):
        for name, call in sides.items():
            call()  # What the prefetching of the side before has left over is over after this one.
            started, cpu_started = time.perf_counter(), time.process_time()
            for _ in range(options.calls):
                call()
            steps = options.calls * bench.config.steps_per_call
            wall[name].append(steps / (time.perf_counter() - started))
            cpu[name].append((time.process_time() - cpu_started) * 1e3 / steps)
    bench.close()
    result = rows("learner steps/s", wall) + rows("processor ms per learner step", cpu)
    for row in result:
        low, high = min(row["samples"]), max(row["samples"])
        print(
            f"{row['figure']:16} {row['median']:8.2f} {row['unit']} ({low:.2f} to {high:.2f}), "
            "{:.2f} x step ({:.2f} to {:.2f})".format(row["ratio"], *row["ratio_spread"])
        )
    options.output.write_text("".join(json.dumps(row) + "\n" for row in result))


if __name__ == "__main__":
    main()
