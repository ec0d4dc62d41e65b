"""Datasets of episodes of random actions."""

import numpy as np

import environments
from agents.datasets import minari_files
from agents.datasets.recording import RecordedEpisode


def make_dataset(name, env, episodes):
    """Records random actions in an environment with one action dimension; returns the episodes."""
    random = np.random.default_rng(0)

    def play(seed):
        environment = environments.make(env, seed=seed)
        steps, actions = [environment.reset()], []
        while not steps[-1].last():
            actions.append(random.uniform(-1, 1, 1).astype(np.float32))
            steps.append(environment.step(actions[-1]))
        return RecordedEpisode(
            np.stack([step.observation for step in steps]),
            np.stack(actions),
            np.array([step.reward for step in steps[1:]], np.float32),
            np.array([step.discount for step in steps[1:]], np.float32),
            seed,
        )

    played = [play(seed) for seed in range(episodes)]
    spec = environments.make(env, seed=0).action_spec()
    minari_files.write(name, played, spec, {"algorithm_name": "random"})
    return played
