"""The replicated learner keeps the statistics of the observations, for every agent."""

import numpy as np
import pytest
import tensorflow as tf
from acme import specs, types

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.replay_learner import ReplayLearner
from agents.replay.transitions import Sample
from agents.sac.agent import SAC
from agents.sac.config import SACConfig
from agents.td3.agent import TD3
from agents.td3.config import TD3Config
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("plain_graphs")
BATCH, STEPS, OBSERVATION, ACTION = 8, 3, 3, 2
SPEC = specs.EnvironmentSpec(
    observations=specs.Array((OBSERVATION,), np.float32),
    actions=specs.BoundedArray((ACTION,), np.float32, -1.0, 1.0),
    rewards=specs.BoundedArray((), np.float32, 0.0, 1.0),
    discounts=specs.BoundedArray((), np.float32, 0.0, 1.0),
)
SETTINGS = {"policy_layers": (5, 4), "critic_layers": (5, 4), "normalize_observations": True}
AGENTS = {"d4pg": (D4PG, D4PGConfig), "td3": (TD3, TD3Config), "sac": (SAC, SACConfig)}


def make_samples():
    random = np.random.default_rng(3)
    n = STEPS * BATCH
    observations = random.normal([20, -5, 0], [3, 0.1, 1], size=(2, n, OBSERVATION))
    return Sample(
        keys=np.arange(n, dtype=np.uint64),
        probabilities=random.uniform(1e-4, 1e-2, n),
        table_size=np.full(n, 1000, np.int64),
        transition=types.Transition(
            observation=observations[0].astype(np.float32),
            action=random.uniform(-1, 1, (n, ACTION)).astype(np.float32),
            reward=random.uniform(0, 1, n).astype(np.float32),
            discount=np.full(n, 0.95, np.float32),
            next_observation=observations[1].astype(np.float32),
        ),
    )


def make_learner(name, replicator_name, torso="mlp", **changes):
    """A learner on the fixed batches, and its module; weights are those of a seed."""
    kind, config = AGENTS[name]
    replicator = rr.make(replicator_name)
    agent = kind(config(**(SETTINGS | {"torso": torso} | changes)), SPEC)
    with replicator.scope():
        tf.random.set_seed(5)
        module = agent.make_module(replicator, total_steps=STEPS)

    def input_fn(context):
        size = context.per_replica_batch_size(BATCH)
        batches = tf.data.Dataset.from_tensor_slices(make_samples()).batch(size)
        return batches.shard(context.num_input_pipelines, context.input_pipeline_id)

    return ReplayLearner(module, replicator, input_fn, None, STEPS), module


@pytest.mark.slow
@pytest.mark.parametrize(("name", "torso"), [("td3", "mlp"), ("sac", "residual")])
def test_the_moments_of_all_batches_are_published(name, torso):
    learner, module = make_learner(name, "single_device", torso)
    assert module.target.encoder is module.online.encoder
    learner.step()
    check_moments(learner.get_variables(["encoder"]))
    learner.close()


@pytest.mark.slow
def test_replicas_keep_the_moments_of_the_global_batches():
    published = []
    for replicator_name in ("single_device", "multi_device:2"):
        learner, _ = make_learner("d4pg", replicator_name)
        learner.step()
        published.append(learner.get_variables(["encoder", "policy"]))
        learner.close()
    one, two = published
    check_moments(two)
    for path, array in one.items():
        np.testing.assert_allclose(two[path], array, rtol=1e-4, atol=1e-5, err_msg=path)


def check_moments(weights):
    seen = make_samples().transition.observation.astype(np.float64)
    np.testing.assert_allclose(weights["encoder/mean"], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(weights["encoder/variance"], seen.var(0), rtol=1e-4)
    assert weights["encoder/count"] == len(seen)


def test_a_checkpoint_holds_the_moments_and_one_without_them_is_refused(tmp_path):
    learner, module = make_learner("td3", "single_device")
    module.online.encoder.update(make_samples().transition.observation)
    learner.refresh()
    other, _ = make_learner("td3", "single_device")
    plain, _ = make_learner("td3", "single_device", normalize_observations=False)
    checkpointer = Checkpointer(tmp_path / "with")
    checkpointer.save(1, {"learner": TrackablePart(**learner.trackables())})
    checkpointer.restore({"learner": TrackablePart(**other.trackables())})
    other.refresh()
    check_moments(other.get_variables(["encoder"]))
    without = Checkpointer(tmp_path / "without")
    without.save(1, {"learner": TrackablePart(**plain.trackables())})
    with pytest.raises(CheckpointError, match="encoder/.*no such variable") as error:
        without.restore({"learner": TrackablePart(**other.trackables())})
    assert "\n" not in str(error.value)
    for one in (learner, other, plain):
        one.close()
