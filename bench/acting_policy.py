"""Processor time of one call of a policy: NumPy and TensorFlow with XLA, in turn.

    PYTHONPATH=. python bench/acting_policy.py

D4PG's and SAC's policies for 17 numbers and 6 actions, at their default sizes, for one observation
and for sixteen.
"""

import os
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import tensorflow as tf
from acme import specs

from agents.acting.acting_policy import TensorFlowPolicy, compile_policy
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.variables import copy_variables, named_variables, names_with_variables
from agents.sac.agent import SAC
from agents.sac.config import SACConfig

OBSERVATION, ACTION, CALLS, ROUNDS = 17, 6, 500, 9
SPEC = specs.EnvironmentSpec(
    observations=specs.Array((OBSERVATION,), np.float32),
    actions=specs.BoundedArray((ACTION,), np.float32, -1.0, 1.0),
    rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)


class NoWeights:
    """Serves nothing: the policies keep their initial weights."""

    def get_variables(self, names):
        """Returns no variables."""
        return {}


def microseconds(function: Callable[[np.ndarray], object], observations: np.ndarray) -> float:
    """Returns the mean processor time of one call."""
    started = time.process_time()
    for _ in range(CALLS):
        function(observations)
    return (time.process_time() - started) / CALLS * 1e6


def main() -> None:
    """Prints the medians."""
    for agent in (D4PG(D4PGConfig(), SPEC), SAC(SACConfig(), SPEC)):
        policy = agent.make_acting_policy(NoWeights(), lambda outputs: outputs)
        names = names_with_variables(policy.networks)
        weights = copy_variables(policy.networks, names)
        variables = {
            path: variable
            for name in names
            for path, variable in named_variables(name, policy.networks[name]).items()
        }
        for size in (1, 16):
            in_numpy = compile_policy(policy, size)
            in_numpy.load(weights)
            compiled = tf.function(policy.act, jit_compile=True).get_concrete_function(
                tf.TensorSpec([size, OBSERVATION])
            )
            in_tensorflow = TensorFlowPolicy(compiled, variables)
            observations = np.random.default_rng(0).standard_normal((size, OBSERVATION), "f")
            pairs = np.array(
                [
                    [microseconds(side, observations) for side in (in_numpy, in_tensorflow)]
                    for _ in range(ROUNDS)
                ]
            )
            ratios = pairs[:, 1] / pairs[:, 0]
            print(
                f"{type(agent).__name__}, {size:2} observations: NumPy "
                f"{np.median(pairs[:, 0]):.0f} us, TensorFlow {np.median(pairs[:, 1]):.0f} us; "
                f"ratio {np.median(ratios):.1f} ({ratios.min():.1f} to {ratios.max():.1f})"
            )


if __name__ == "__main__":
    main()
