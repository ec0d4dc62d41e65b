"""How precisely a pixel agent's networks tell positions, at the checkpoints of a run on reacher.

    rl-replicator train d4pg --env reacher:easy --pixels --keep-checkpoints 100 --run-dir RUN_DIR
    python -m bench.pixel_probe RUN_DIR

Each row gives errors in cm (root mean square of x and y) of the finger, the target, and the vector
between them, on the fifth of the episodes that was left out: of ridge regressions from the
encoder's features, for the best of five penalties, and of a network with two hidden layers from the
policy's projection of these features. The finger must come within 6 cm of the target.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import sonnet as snt
import tensorflow as tf
from dm_control import suite

import agents
from agents.learning.weights import WeightsPart, collect_variables
from agents.networks.mlp import LayerNorm
from rl_replicator.runs.run_directory import RunDirectory

NUM_CHECKPOINTS, BATCH = 6, 250
PENALTIES = (1e0, 1e1, 1e2, 1e3, 1e4)


def observed(policy: agents.Policy, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns stacks [N, H, W, C] and positions [N, 6] after up to 11 random actions."""
    reacher = suite.load("reacher", "easy", {"random": 7})
    environment, random = policy.adapt(reacher), np.random.RandomState(0)
    stacks, positions = [], []
    for _ in range(episodes):
        frames = [environment.reset().observation] * policy.agent.config.frame_stack
        for _ in range(random.randint(12)):
            action = random.uniform(-1, 1, 2).astype(np.float32)
            frames = [*frames[1:], environment.step(action).observation]
        places = reacher.physics.named.data.geom_xpos
        finger, target = places["finger", :2], places["target", :2]
        stacks.append(np.concatenate(frames, axis=-1))
        positions.append(100 * np.concatenate([finger, target, finger - target]))
    return np.array(stacks), np.array(positions)


def split(features: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns normalised features and positions to learn from, and those that are left out."""
    count = len(features) * 4 // 5
    mean, spread = features[:count].mean(0), features[:count].std(0) + 1e-6
    features = (features.astype(np.float64) - mean) / spread
    return features[:count], positions[:count], features[count:], positions[count:]


def shown(errors: np.ndarray) -> str:
    """Returns the errors of finger, target and the vector between them, from errors [N, 6]."""
    sizes = np.sqrt(np.square(errors).reshape(-1, 3, 2).mean(axis=(0, 2)))
    return " ".join(f"{size:5.2f}" for size in sizes)


def of_ridge(features: np.ndarray, positions: np.ndarray) -> str:
    """Returns the errors of the best ridge regression."""
    known, places, others, other_places = split(features, positions)
    mean, kernel = places.mean(0), known @ known.T
    found = []
    for penalty in PENALTIES:
        weights = np.linalg.solve(kernel + penalty * np.eye(len(known)), places - mean)
        found.append(other_places - mean - others @ (known.T @ weights))
    return shown(min(found, key=np.std))


def of_network(features: np.ndarray, positions: np.ndarray) -> str:
    """Returns the errors of a network with two hidden layers of 256."""
    known, places, others, other_places = split(features, positions)
    layers = [tf.keras.layers.Dense(256, "relu") for _ in range(2)]
    network = tf.keras.Sequential([*layers, tf.keras.layers.Dense(6)])
    network.compile("adam", "mse")
    network.fit(known, places / 10, epochs=40, batch_size=64, verbose=0)
    return shown(other_places - 10 * network.predict(others, verbose=0))


def projection(policy: snt.Module) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the first layer of a policy, with its LayerNorm and tanh."""
    linear = next(layer for layer in policy.submodules if layer.name == "linear_0")
    norm = next(layer for layer in policy.submodules if isinstance(layer, LayerNorm))
    return lambda features: tf.tanh(norm(linear(features)))


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
    frames, positions = observed(policy, options.episodes)
    networks = policy.agent.make_acting_networks()
    variables = collect_variables(networks, networks)
    encode = tf.function(networks["encoder"])
    project = projection(networks["policy"])
    print(f"{'errors in cm of':>24}  finger, target, between: encoder; projection")

    def show(name: str) -> None:
        features = computed(encode, frames)
        after = of_network(computed(project, features), positions)
        print(f"{name:>24}  {of_ridge(features, positions)};  {after}", flush=True)

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
