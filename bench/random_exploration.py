"""Measures how often exploration finds a reward before any learning, for each task.

    python -m bench.random_exploration finger:turn_easy reacher:hard --episodes 30

Plays episodes of a policy whose action is 0, with each kind of exploration, and prints the share of
episodes with any reward and the mean return.
"""

import argparse
from collections.abc import Callable

import numpy as np

import environments
from agents.acting.exploration import make_exploration
from agents.agent import ExplorationContext
from agents.config import NoiseSettings

KINDS = {
    "random actions": NoiseSettings(exploration_random_steps=1),
    "noise 0.3": NoiseSettings(exploration_sigma=0.3),
    "noise 1": NoiseSettings(exploration_sigma=1.0),
    "pink noise 0.3": NoiseSettings(exploration="pink", exploration_sigma=0.3),
    "pink noise 1": NoiseSettings(exploration="pink", exploration_sigma=1.0),
}


def play(environment, explore: Callable[[np.ndarray], np.ndarray]) -> float:
    """Plays one episode; returns its return."""
    zero = np.zeros(environment.action_spec().shape, np.float32)
    timestep = environment.reset()
    total = 0.0
    while not timestep.last():
        timestep = environment.step(explore(zero))
        total += float(timestep.reward)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="+", help="names of environments")
    parser.add_argument("--episodes", type=int, default=30)
    options = parser.parse_args()
    for task in options.tasks:
        print(task)
        for name, config in KINDS.items():
            # The same initial states for all kinds.
            environment = environments.make(task, seed=1)
            explore = make_exploration(config, ExplorationContext(np.random.default_rng(1)))
            returns = [play(environment, explore) for _ in range(options.episodes)]
            found = np.mean([total > 0 for total in returns])
            print(f"  {name}: {found:.0%} of the episodes, mean return {np.mean(returns):.1f}")


if __name__ == "__main__":
    main()
