"""Which positions the features of an encoder tell, at the checkpoints of a run on reacher.

    rl-replicator train d4pg --env reacher:easy --pixels --keep-checkpoints 100 --run-dir RUN_DIR
    python -m bench.pixel_probe RUN_DIR

Ridge regressions of the finger's and the target's position (x, y) from the first frames of
episodes. Each row gives R^2 on the fifth of the episodes that was left out, for the best of five
penalties: 1 is exact, 0 as good as the mean position.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf
from dm_control import suite

import agents
from agents.learning.weights import WeightsPart, collect_variables
from rl_replicator.runs.run_directory import RunDirectory

NUM_CHECKPOINTS, BATCH = 6, 250
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)


def first_frames(policy: agents.Policy, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns stacks [N, H, W, C] and positions [N, 4] at the starts of episodes."""
    reacher = suite.load("reacher", "easy", {"random": 7})
    environment, frames, positions = policy.adapt(reacher), [], []
    for _ in range(episodes):
        frames.append(environment.reset().observation)
        places = reacher.physics.named.data.geom_xpos
        positions.append([*places["finger", :2], *places["target", :2]])
    stack = policy.agent.config.frame_stack
    return np.concatenate([np.array(frames)] * stack, axis=-1), np.array(positions)


def explained(features: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Returns R^2 of each position, [4], from features [N, F]."""
    count = len(features) * 4 // 5
    features = features - features[:count].mean(0)
    features = features.astype(np.float64) / (features[:count].std(0) + 1e-6)
    known, mean = features[:count], positions[:count].mean(0)
    kernel, spread = known @ known.T, ((positions[count:] - positions[count:].mean(0)) ** 2).sum(0)
    found = []
    for penalty in PENALTIES:
        weights = np.linalg.solve(kernel + penalty * np.eye(count), positions[:count] - mean)
        errors = positions[count:] - mean - features[count:] @ known.T @ weights
        found.append(1 - (errors**2).sum(0) / spread)
    return max(found, key=np.mean)


def computed(function: Callable[[tf.Tensor], tf.Tensor], inputs: np.ndarray) -> np.ndarray:
    """Returns the outputs of a network for all inputs, in batches."""
    parts = range(0, len(inputs), BATCH)
    return np.concatenate([function(tf.constant(inputs[i : i + BATCH])).numpy() for i in parts])


def main() -> None:
    """Prints a row for some checkpoints of a run."""
    parser = argparse.ArgumentParser(prog="python -m bench.pixel_probe", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--episodes", type=int, default=2000)
    options = parser.parse_args()
    policy = agents.load_policy(options.run_dir)
    frames, positions = first_frames(policy, options.episodes)
    networks = policy.agent.make_acting_networks()
    variables = collect_variables(networks, networks)
    encode = tf.function(networks["encoder"])

    def show(name: str) -> None:
        found = explained(computed(encode, frames), positions)
        print(f"{name:>24}  finger {found[0]:.2f} {found[1]:.2f}", end="  ")
        print(f"target {found[2]:.2f} {found[3]:.2f}", flush=True)

    show("untrained")
    folders = sorted(RunDirectory(options.run_dir).checkpoints.glob("*_step_*"))
    for folder in folders[:: max(1, len(folders) // NUM_CHECKPOINTS)]:
        weights = WeightsPart()
        weights.restore(folder / "weights")
        for path, array in weights.get_variables([*networks]).items():
            variables[path].assign(array)
        show(folder.name)


if __name__ == "__main__":
    main()
