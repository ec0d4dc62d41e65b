"""The average of the policy is evaluated; actors explore with the newest weights."""

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf
from acme import types

import rl_replicator as rr
from agents.learning.replay_learner import ReplayLearner, StepOutput
from agents.learning.targets import PolicyAverage, without_averages
from agents.learning.weights import copy_variables, named_variables
from agents.replay.transitions import Sample
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from tests.agents.actor_critic_reference import batches

pytestmark = pytest.mark.usefixtures("plain_graphs")
# The average takes the weights of every tenth step.
BATCH, PERIOD, CALLS, SPAN = 4, 10, 40, 25
NUM_ROWS = CALLS * PERIOD * BATCH


@snt.allow_empty_variables
class Counting(snt.Module):
    """An encoder with a variable that no loss trains."""

    def __init__(self):
        super().__init__(name="encoder")
        self.num_seen = tf.Variable(0.0, trainable=False, name="num_seen")


def make_networks():
    policy = snt.Linear(2, name="policy")
    policy(tf.zeros([1, 3]))
    return {"encoder": Counting(), "policy": policy}


class Drifting(tf.Module):
    """Subtracts the mean reward of the global batch from all weights of a policy in each step."""

    def __init__(self, replicator):
        super().__init__()
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.acting_networks = make_networks()
        self.optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(1.0))

    def step_fn(self, sample):
        variables = self.acting_networks["policy"].trainable_variables
        gradient = tf.reduce_mean(sample.transition.reward)
        self.optimizer.apply([tf.fill(v.shape, gradient) for v in variables], variables)
        self.acting_networks["encoder"].num_seen.assign_add(1.0)
        self.num_steps.assign_add(1)
        return StepOutput(sample.keys, tf.ones_like(sample.keys), {})


def make_learner(replicator_name):
    replicator = rr.make(replicator_name)
    with replicator.scope():
        module = Drifting(replicator)
        average = PolicyAverage(module, make_networks(), SPAN)
    rewards = np.random.default_rng(0).normal(size=NUM_ROWS).astype(np.float32)
    keys = np.arange(NUM_ROWS)
    input_fn = batches(Sample(keys, keys, keys, types.Transition((), (), rewards, (), ())), BATCH)
    return ReplayLearner(average, replicator, input_fn, None, steps_per_call=PERIOD), module


@pytest.mark.parametrize("replicator_name", ["single_device", "multi_device:2"])
def test_evaluators_get_the_average_and_actors_the_newest(replicator_name):
    learner, module = make_learner(replicator_name)
    newest = named_variables("policy", module.acting_networks["policy"])
    start = learner.get_variables(["average_policy"])
    for path, variable in newest.items():
        np.testing.assert_array_equal(start[f"average_{path}"], variable.numpy())
    expected = {path: v.numpy().astype(np.float64) for path, v in newest.items()}
    assert len(expected) == 2
    behind = []
    for call in range(1, CALLS + 1):
        learner.step()
        published = learner.get_variables(["policy", "average_policy"])
        rate = PERIOD / min(max(0.1 * call * PERIOD, PERIOD), SPAN)
        for path, variable in newest.items():
            expected[path] += rate * (variable.numpy() - expected[path])
            np.testing.assert_array_equal(published[path], variable.numpy())
            average = published[f"average_{path}"]
            np.testing.assert_allclose(average, expected[path], rtol=1e-4, atol=1e-5)
        behind.append(max(np.abs(published[f"average_{p}"] - published[p]).max() for p in newest))
    assert max(behind[:10]) < 1e-6 < 0.1 < np.mean(behind[-20:])
    assert learner.network_names == ("encoder", "policy", "average_policy")
    assert without_averages(learner.network_names) == ["encoder", "policy"]
    assert learner.get_variables(["encoder"])["encoder/num_seen"] == CALLS * PERIOD
    learner.close()


def test_what_evaluators_do_not_act_with_has_no_average():
    module = Drifting(rr.make("single_device"))
    critic = snt.Linear(1, name="critic")
    critic(tf.zeros([1, 5]))
    module.acting_networks = {"critic": critic, **module.acting_networks}
    served = PolicyAverage(module, make_networks(), SPAN).acting_networks
    assert list(served) == ["critic", "encoder", "policy", "average_policy"]


def test_a_checkpoint_holds_the_average(tmp_path):
    learner, _ = make_learner("single_device")
    for _ in range(CALLS // 2):
        learner.step()
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, {"learner": TrackablePart(**learner.trackables())})
    restored = PolicyAverage(Drifting(rr.make("single_device")), make_networks(), SPAN)
    checkpointer.restore({"learner": TrackablePart(module=restored)})
    networks = restored.acting_networks
    saved = learner.get_variables([*networks])
    for path, array in copy_variables(networks, networks).items():
        np.testing.assert_array_equal(array, saved[path])
    learner.close()
