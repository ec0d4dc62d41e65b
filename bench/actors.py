"""Environment steps of one actor on `cheetah:run`, against Acme's, EnvPool and the bare task.

    python -m bench.actors

All run in one process, in turn, with equal networks (256-256) and five-step transitions. There is
no learner, and the table's limiter never blocks. Acme's actor consists of the parts of dm-acme
0.2.4 that can be imported with this stack, `FeedForwardActor` and `NStepTransitionAdder`, on the
same environment, with D4PG's noise in the policy network; it never fetches weights. The peers are
those of bench/peers.txt, and are left out if they cannot be installed. Processor time includes the
replay server's.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

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
from agents.learning.weights import copy_variables
from agents.replay.transitions import TABLE
from bench import harness, peers
from environments.engines import EnvironmentsInTurn

DOMAIN, TASK = "cheetah", "run"
NUM_ACTIONS, SIGMA = 6, 0.3
ACME = "Acme's actor, insertion"


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
    """A client that accepts an argument that Acme's adder passes and Reverb 0.14 has removed."""

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
    """Unmodified dm_control, with a constant action."""
    from dm_control import suite

    environment = suite.load(DOMAIN, TASK, task_kwargs={"random": 1})
    action = np.zeros(NUM_ACTIONS)
    environment.reset()

    def run(steps: int) -> None:
        for _ in range(steps):
            if environment.step(action).last():
                environment.reset()

    return run


def envpool(num_envs: int, num_threads: int) -> Callable[[int], None]:
    """EnvPool's task, with a constant action."""
    import envpool as pool  # An optional dependency.

    environment = pool.make_dm("CheetahRun-v1", num_envs=num_envs, num_threads=num_threads, seed=1)
    action = np.zeros((num_envs, NUM_ACTIONS))
    environment.reset()

    def run(steps: int) -> None:
        for _ in range(steps // num_envs):
            environment.step(action)  # Resets by itself.

    return run


def our_actor(num_envs: int) -> Callable[[int], None]:
    """This project's actor."""
    tasks = [environments.make(f"{DOMAIN}:{TASK}", seed=i) for i in range(num_envs)]
    spec = specs.make_environment_spec(tasks[0])
    agent = D4PG(D4PGConfig(policy_layers=(256, 256), n_step=5, exploration_random_steps=0), spec)
    server = make_server(agent.layout.signature, TABLE)
    client = reverb.Client(f"localhost:{server.port}")
    adders = [agent.make_adder(client, lambda seconds: None) for _ in tasks]
    contexts = [ExplorationContext(np.random.default_rng(i)) for i in range(num_envs)]
    actor = agent.make_actor(Weights(agent), adders, contexts)
    steps_taken = explore(EnvironmentsInTurn(tasks), actor)

    def run(steps: int, server=server) -> None:  # Keeps the server alive.
        for _ in itertools.islice(steps_taken, steps):
            pass
        for adder in adders:
            adder.flush()

    return run


def acme_actor() -> Callable[[int], None]:
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
    signature = acme_adders.NStepTransitionAdder.signature(spec)
    server = make_server(signature, acme_adders.DEFAULT_PRIORITY_TABLE)
    client: Any = CurrentClient(f"localhost:{server.port}")
    adder = acme_adders.NStepTransitionAdder(client, n_step=5, discount=0.99)
    steps_taken = interact(environment, actors.FeedForwardActor(policy, adder))

    def run(steps: int, server=server) -> None:
        for _ in itertools.islice(steps_taken, steps):
            pass

    return run


def make_sides(report: harness.Report) -> dict[str, Callable[[int], None]]:
    """Returns the sides by name: functions that take a number of environment steps."""
    sides = {
        "dm_control, constant action": bare_dm_control(),
        "actor, 1 env, insertion": our_actor(1),
        **{f"actor, {n} envs, insertion": our_actor(n) for n in (8, 16)},
    }
    others: dict[str, Callable[[], Callable[[int], None]]] = {
        ACME: acme_actor,
        "EnvPool, 1 env, 1 thread": lambda: envpool(1, 1),
        "EnvPool, 8 envs, 2 threads": lambda: envpool(8, 2),
        "EnvPool, 32 envs, 2 threads": lambda: envpool(32, 2),
    }
    for name, make in others.items():
        try:
            peers.enable()
            sides[name] = make()
        except ImportError as error:
            report.leave_out(name, error)
    return sides


def main() -> None:
    """Measures all actors; ratios are to Acme's."""
    parser = harness.parser("actors", __doc__)
    parser.add_argument("--steps", type=int, default=2000, help="environment steps of a sample")
    options = parser.parse_args()
    report = harness.Report("actors", options)
    sides = make_sides(report)
    samples = harness.measure(
        {
            name: harness.clocked(functools.partial(run, options.steps), options.steps, "steps")
            for name, run in sides.items()
        },
        options.rounds,
    )
    report.add(samples, {name: ACME for name in sides if name.startswith("actor")})
    report.write()


if __name__ == "__main__":
    main()
