"""Calls of a policy in NumPy, as actors make them, against the same in TensorFlow.

    python -m bench.acting_policy

D4PG's and SAC's policies for 17 numbers and 6 actions, at their default sizes, for one observation
and for sixteen.
"""

import functools

import numpy as np

from agents.acting.acting_policy import TensorFlowPolicy, compile_policy, trace_policy
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.variables import copy_variables, names_with_variables
from agents.sac.agent import SAC
from agents.sac.config import SACConfig
from bench import harness
from bench.learner import OBSERVATION, SPEC

CALLS = 500


class NoWeights:
    """Serves nothing: the policies keep their initial weights."""

    def get_variables(self, names):
        """Returns no variables."""
        return {}


def sides(agent) -> tuple[dict[str, harness.Side], dict[str, str]]:
    """Returns the sides of an agent, and which one each is compared with."""
    made, peers = {}, {}
    policy = agent.make_exploring_policy(NoWeights())
    weights = copy_variables(policy.networks, names_with_variables(policy.networks))
    for size in (1, 16):
        in_numpy = compile_policy(policy, size)
        in_numpy.load(weights)
        in_tensorflow = TensorFlowPolicy(*trace_policy(policy, size))  # As for pixels.
        observations = np.random.default_rng(0).standard_normal((size, OBSERVATION), "f")
        name = f"{type(agent).__name__}, {size} observation{'s' * (size > 1)}"
        for kind, function in (("NumPy", in_numpy), ("TensorFlow", in_tensorflow)):
            call = harness.repeated(functools.partial(function, observations), CALLS)
            made[f"{name}, {kind}"] = harness.clocked(call, CALLS, "calls")
        peers[f"{name}, NumPy"] = f"{name}, TensorFlow"
    return made, peers


def main() -> None:
    """Measures both agents."""
    options = harness.parser("acting_policy", __doc__).parse_args()
    report = harness.Report("acting_policy", options)
    for agent in (D4PG(D4PGConfig(), SPEC), SAC(SACConfig(), SPEC)):
        measured, peers = sides(agent)
        report.add(harness.measure(measured, options.rounds), peers)
    report.write()


if __name__ == "__main__":
    main()
