"""An actor of 16 environments, and a whole program, with each `--env-engine`.

    python -m bench.env_engines

All sides run in one process, in turn. Actors insert into a table whose limiter never blocks. A
program is D4PG's learner and one actor; while other sides are measured, the limiter blocks that
actor. Rates of programs are learner steps, two for each environment step.
"""

import functools
import itertools
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import reverb

import environments
import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.environment_loop import explore
from agents.nodes.wait_log import StoppedError
from agents.replay.transitions import TABLE
from agents.runs.launching import share_processors
from agents.task import Task
from bench import harness
from bench.actors import Weights, make_server
from environments.engines.batch import BatchEnvironment, EnvironmentsInTurn
from environments.engines.envpool_pool import EnvPoolEnvironments

TASKS = ("cheetah:run", "walker:walk", "humanoid:walk")
ENGINES = ("dm_control", "EnvPool")
SIZE, PROGRAM, TOTAL_STEPS = 16, "walker:walk", 60_000


def make_batch(engine: str, task: str) -> BatchEnvironment:
    """Makes the environments of an actor."""
    if engine == "EnvPool":
        return EnvPoolEnvironments(task, range(SIZE), num_threads=os.cpu_count() or 1)
    return EnvironmentsInTurn([environments.make(task, seed) for seed in range(SIZE)])


def make_actor(engine: str, task: str) -> Callable[[int], None]:
    """Makes an actor; returns a function that takes a number of steps."""
    agent = D4PG(D4PGConfig(policy_layers=(256, 256)), Task(task).spec())
    server = make_server(agent.layout.signature, TABLE)
    client = reverb.Client(f"localhost:{server.port}")
    adders = [agent.make_adder(client, lambda seconds: None) for _ in range(SIZE)]
    contexts = [ExplorationContext(np.random.default_rng(i)) for i in range(SIZE)]
    actor = agent.make_actor(Weights(agent), adders, contexts)
    steps_taken = explore(make_batch(engine, task), actor)

    def run(steps: int, server=server) -> None:  # Keeps the server alive.
        for _ in itertools.islice(steps_taken, steps):
            pass
        for adder in adders:
            adder.flush()

    return run


class Program:
    """A learner, and an actor in a separate thread."""

    def __init__(self, engine: str, over: threading.Event):
        config = D4PGConfig()
        self.steps_per_call = config.steps_per_call
        agent = D4PG(config, Task(PROGRAM).spec())
        self._over = over
        self._server = reverb.Server(agent.make_tables(num_replicas=1))
        address = f"localhost:{self._server.port}"
        self.learner = agent.make_learner(rr.make("single_device"), [address], TOTAL_STEPS)
        self._adders = [agent.make_adder(reverb.Client(address), self._wait) for _ in range(SIZE)]
        contexts = [ExplorationContext(np.random.default_rng(i)) for i in range(SIZE)]
        actor = agent.make_actor(self.learner, self._adders, contexts)
        steps = explore(make_batch(engine, PROGRAM), actor)
        self._thread = threading.Thread(target=self._act, args=(steps,))
        self._thread.start()

    def _wait(self, seconds: float) -> None:
        if self._over.is_set():
            raise StoppedError

    def _act(self, steps: Any) -> None:
        try:
            for _ in steps:
                if self._over.is_set():
                    break
        except StoppedError:
            pass

    def close(self) -> None:
        """Joins the actor's thread and closes the learner. Set the event `over` before."""
        self._thread.join()
        self.learner.close()
        for adder in self._adders:
            adder.close()


def main() -> None:
    """Measures both engines; ratios are to dm_control."""
    parser = harness.parser("env_engines", __doc__)
    parser.add_argument("--steps", type=int, default=3200, help="environment steps of a sample")
    parser.add_argument("--calls", type=int, default=4, help="calls of the learner in a sample")
    options = parser.parse_args()
    share_processors()  # Before TensorFlow's threads start.
    report = harness.Report("env_engines", options)
    over, programs = threading.Event(), {}
    sides = {
        f"{task}, {engine}": harness.clocked(
            functools.partial(make_actor(engine, task), options.steps), options.steps, "steps"
        )
        for task in TASKS
        for engine in ENGINES
    }
    report.add(harness.measure(sides, options.rounds), _peers(sides))
    for engine in ENGINES:
        programs[f"{PROGRAM}, {engine}, program"] = Program(engine, over)
    sides = {
        name: harness.clocked(
            harness.repeated(program.learner.step, options.calls),
            options.calls * program.steps_per_call,
            "learner steps",
        )
        for name, program in programs.items()
    }
    samples = harness.measure(sides, options.rounds, warm_up=2)
    over.set()
    for program in programs.values():
        program.close()
    report.add(samples, _peers(sides))
    report.write()


def _peers(names: Any) -> dict[str, str]:
    """Returns dm_control's side for each of EnvPool."""
    return {name: name.replace("EnvPool", "dm_control") for name in names if "EnvPool" in name}


if __name__ == "__main__":
    main()
