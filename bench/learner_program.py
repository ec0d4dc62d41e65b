"""The D4PG learner from state, part by part, up to the whole program, on `cartpole:swingup`.

    python -m bench.learner_program

All sides run in one process, with the defaults of `rl-replicator train d4pg`. "step" uses one
stored batch repeatedly; "step, sampling" takes batches from a table whose limiter never blocks;
"learner" also publishes weights; "program" does all of that while an actor explores and inserts,
throttled by the limiter. The limiter also blocks that actor while other sides are measured.
"1 transition an item" uses `--agent.replay.transitions-per-item 1`.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb
import tensorflow as tf
from acme import specs

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.config import one_by_one
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.environment_loop import explore
from agents.learning.replay_learner import ReplayLearner
from agents.nodes.wait_log import StoppedError
from agents.replay.input import make_input_fn
from agents.replay.table import LearnerDemand
from agents.replay.transitions import TABLE
from agents.runs.launching import share_processors
from bench import harness
from environments.engines.batch import EnvironmentsInTurn

TASK = "cartpole:swingup"
FILL_STEPS, TOTAL_STEPS = 2000, 60_000
BARE = "step"


class Bench:
    """A filled table of each kind, and learners on them."""

    def __init__(self) -> None:
        share_processors()  # Before TensorFlow's threads start.
        self.spec = specs.make_environment_spec(environments.make(TASK, seed=0))
        self.config = D4PGConfig()
        self.agent = D4PG(self.config, self.spec)
        self.single = D4PG(one_by_one(self.config), self.spec)
        self.replicator = rr.make("single_device")
        self.over = threading.Event()
        self.servers: list[reverb.Server] = []
        self.learners: list[ReplayLearner] = []
        self.threads: list[threading.Thread] = []

    def serve(self, agent: D4PG, is_limited: bool) -> str:
        """Starts a replay server; returns its address."""
        (table,) = agent.make_tables(num_replicas=1)
        if not is_limited:
            table = reverb.Table(
                TABLE,
                reverb.selectors.Uniform(),  # As in the defaults.
                reverb.selectors.Fifo(),
                max_size=self.config.replay.max_size,
                rate_limiter=reverb.rate_limiters.MinSize(1),
                signature=agent.layout.signature,
            )
        server = reverb.Server([table])
        self.servers.append(server)
        return f"localhost:{server.port}"

    def act(self, agent: D4PG, address: str, source: Any, steps: int | None) -> None:
        """Explores for `steps` steps; None: until the benchmark is over."""

        def on_wait(seconds: float) -> None:
            if self.over.is_set():
                raise StoppedError

        adder = agent.make_adder(reverb.Client(address), on_wait)
        environment = environments.make(TASK, seed=1)
        context = ExplorationContext(np.random.default_rng(0), lambda: sys.maxsize)
        actor = agent.make_actor(source, [adder], [context])
        try:
            for taken, _ in enumerate(explore(EnvironmentsInTurn([environment]), actor)):
                if taken == steps or self.over.is_set():
                    break
            adder.finish(timeout=60.0)
        except StoppedError:
            pass
        adder.close()

    def learner(self, input_fn: Callable[[Any], tf.data.Dataset]) -> ReplayLearner:
        """Makes a learner that writes no priorities."""
        with self.replicator.scope():
            module = self.agent.make_module(self.replicator, TOTAL_STEPS)
        return ReplayLearner(module, self.replicator, input_fn, priorities=None, steps_per_call=16)

    def sides(self) -> dict[str, Callable[[], None]]:
        """Returns a function for each side that makes one call of its learner, by name."""
        demand = LearnerDemand(self.config.global_batch_size, self.config.steps_per_call, 1)
        sides: dict[str, Callable[[], None]] = {}
        for agent, how in ((self.agent, ""), (self.single, ", 1 transition an item")):
            free, limited = self.serve(agent, False), self.serve(agent, True)
            full = agent.make_learner(self.replicator, [free], TOTAL_STEPS)
            self.act(agent, free, full, FILL_STEPS)
            input_fn = make_input_fn([free], agent.layout, demand)
            if not sides:
                batches = tf.data.Dataset.from_tensors(next(iter(input_fn(None)))).repeat()
                self.learners.append(self.learner(_always(batches)))
                sides[BARE] = self.learners[-1]._step
            sampling = self.learner(input_fn)
            program = agent.make_learner(self.replicator, [limited], TOTAL_STEPS)
            self.threads.append(
                threading.Thread(target=self.act, args=(agent, limited, program, None))
            )
            self.threads[-1].start()
            self.learners += [full, sampling, program]
            sides |= {
                f"step, sampling{how}": sampling._step,
                f"learner{how}": full.step,
                f"program{how}": program.step,
            }
        return sides

    def close(self) -> None:
        """Ends all threads."""
        self.over.set()
        for learner in self.learners:
            learner.close()
        for thread in self.threads:
            thread.join()


def _always(dataset: tf.data.Dataset) -> Callable[[Any], tf.data.Dataset]:
    """Returns an `input_fn` that returns this dataset."""
    return lambda context: dataset


def main() -> None:
    """Measures all parts; ratios are to the bare step."""
    parser = harness.parser("learner_program", __doc__)
    parser.add_argument("--calls", type=int, default=4, help="calls of 16 steps in a sample")
    options = parser.parse_args()
    report = harness.Report("learner_program", options)
    bench = Bench()
    steps = options.calls * bench.config.steps_per_call

    def side(call: Callable[[], None]) -> harness.Side:
        timed = harness.clocked(harness.repeated(call, options.calls), steps, "learner steps")

        def sample():
            call()  # The previous side stops prefetching during this call.
            return timed()

        return sample

    sides = {name: side(call) for name, call in bench.sides().items()}
    samples = harness.measure(sides, options.rounds, warm_up=2)
    bench.close()
    report.add(samples, {name: BARE for name in sides if name != BARE})
    report.write()


if __name__ == "__main__":
    main()
