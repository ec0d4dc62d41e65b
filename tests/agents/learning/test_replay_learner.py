"""The replicated learner: what a call writes and reports, and the statistics of observations."""

import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf
from acme.types import Transition

import rl_replicator as rr
from agents.d4pg.agent import D4PG
from agents.d4pg.config import D4PGConfig
from agents.learning.replay_learner import LEARNER_STEPS, ReplayLearner, StepOutput
from agents.learning.weights import named_variables
from agents.replay.transitions import Sample
from agents.sac.agent import SAC
from agents.sac.config import SACConfig
from agents.td3.agent import TD3
from agents.td3.config import TD3Config
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackablePart
from rl_replicator.errors import CheckpointError, ConfigError
from tests.agents import actor_critic_reference as reference
from tests.agents import fixed_samples
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("plain_graphs")
BATCH, STEPS = 8, 3
SPEC = fixed_samples.make_spec()
SETTINGS = {
    "policy_layers": (5, 4),
    "critic_layers": (5, 4),
    "normalize_observations": True,
    "policy_average": 1,
    "global_batch_size": BATCH,
    "steps_per_call": STEPS,
}
AGENTS = {"d4pg": (D4PG, D4PGConfig), "td3": (TD3, TD3Config), "sac": (SAC, SACConfig)}


def make_samples():
    samples = fixed_samples.make_samples(STEPS * BATCH)
    scale, mean = np.float32([3, 0.1, 1]), np.float32([20, -5, 0])
    observation = mean + scale * samples.transition.observation
    return samples._replace(transition=samples.transition._replace(observation=observation))


class FixedReplay:
    """Batches of the fixed samples, in their order."""

    def make_input_fn(self, layout, demand):
        return reference.batches(make_samples(), demand.global_batch_size)


def make_agent(name, **changes):
    kind, config = AGENTS[name]
    return kind(config(**(SETTINGS | changes)), SPEC)


def make_learner(name, replicator_name, **changes):
    """Returns a learner on the fixed batches, with seeded weights, and its module."""
    replicator = rr.make(replicator_name)
    agent = make_agent(name, **changes)
    tf.random.set_seed(5)
    learner = agent.make_local_learner(replicator, FixedReplay(), 100)
    return learner, learner.trackables()["module"]


@pytest.mark.slow
def test_the_moments_of_the_global_batches_are_published_and_in_checkpoints(tmp_path):
    """tests/conformance/test_agents.py compares all weights with those of one device."""
    learner, module = make_learner("d4pg", "multi_device:2")
    assert learner.trackables() == {"module": module}
    assert module.target.encoder is module.online.encoder
    learner.step()
    checkpointer, without = Checkpointer(tmp_path / "with"), Checkpointer(tmp_path / "without")
    checkpointer.save(1, {"learner": TrackablePart(**learner.trackables())})
    restored, other = (
        make_agent("d4pg", normalize_observations=has).make_module(rr.make("multi_device:2"), 100)
        for has in (True, False)
    )
    checkpointer.restore({"learner": TrackablePart(module=restored)})
    seen = make_samples().transition.observation.astype(np.float64)
    published = learner.get_variables(["encoder"])
    for name, expected in (("mean", seen.mean(0)), ("variance", seen.var(0)), ("count", len(seen))):
        found = getattr(restored.online.encoder, name)
        np.testing.assert_array_equal(found, published[f"encoder/{name}"])
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    without.save(1, {"learner": TrackablePart(module=other)})
    with pytest.raises(CheckpointError, match="encoder/.*no such variable") as error:
        without.restore({"learner": TrackablePart(module=restored)})
    assert "\n" not in str(error.value)
    learner.close()


@pytest.mark.slow
def test_wide_layers_compute_in_the_precision_of_the_config():
    settings = {"policy_layers": (512, 512), "critic_layers": (512, 512), "steps_per_call": 1}
    settings |= {"normalize_observations": False}
    learner, _ = make_learner("sac", "single_device", precision="bfloat16", **settings)
    learner.step()
    tf.random.set_seed(5)
    module = make_agent("sac", **settings).make_module(rr.make("single_device"), 100)
    batch = tf.nest.map_structure(lambda x: tf.constant(x[:BATCH]), make_samples())
    exact, rounded = module.step_fn(batch).metrics, learner.metrics()
    metrics = {"critic_loss": 0.02, "critic_gradient_norm": 0.1, "policy_gradient_norm": 0.1}
    for metric, tolerance in metrics.items():
        assert float(exact[metric]) != rounded[metric]
        assert rounded[metric] == pytest.approx(float(exact[metric]), rel=tolerance)
    published = learner.get_variables(["policy"])
    for path, variable in named_variables("policy", module.online.policy).items():
        # The size of Adam's steps does not depend on the size of the gradient.
        assert published[path].dtype == np.float32
        np.testing.assert_allclose(published[path], variable, atol=6e-4)
    learner.close()


class Summing(tf.Module):
    """Reports the rewards; the priority of a row is its reward."""

    def __init__(self):
        super().__init__()
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.acting_networks = {}

    def step_fn(self, sample):
        self.num_steps.assign_add(1)
        reward = sample.transition.reward
        return StepOutput(sample.keys, reward, {"reward": tf.reduce_mean(reward), "one": 1.0})


class Written(list):
    """Priorities that were written."""

    num_dropped_batches = 3
    is_closed = False
    write = list.extend

    def close(self):
        self.is_closed = True


def make_summing_learner(make_rewards, kind=Summing):
    """A learner of 2 replicas and 2 steps a call, and what it has written."""
    replicator = rr.make("multi_device:2")

    def input_fn(context):
        assert (context.num_input_pipelines, context.per_replica_batch_size(4)) == (2, 2)

        def as_sample(reward):
            key = tf.cast(reward, tf.uint64)
            return Sample(key, reward, reward, Transition((), (), reward, (), ()))

        rewards = tf.data.Dataset.from_generator(
            lambda: make_rewards(), output_signature=tf.TensorSpec([], tf.float32)
        ).map(as_sample)
        return rewards.shard(2, context.input_pipeline_id).batch(2, drop_remainder=True)

    with replicator.scope():
        module = kind()
    written = Written()
    return ReplayLearner(module, replicator, input_fn, written, steps_per_call=2), written


def test_a_module_without_the_networks_that_act_is_refused():
    class Unseeing(tf.Module):
        acting_networks = {"policy": None}

    class Partial(TD3):
        def make_module(self, replicator, total_steps):
            return Unseeing()

    agent = Partial(TD3Config(**SETTINGS), SPEC)
    with pytest.raises(ConfigError, match=r"acting_networks of Unseeing with .*, got \['policy'\]"):
        agent.make_local_learner(rr.make("single_device"), FixedReplay(), 100)


def test_a_call_writes_priorities_and_reports_its_means_and_its_time():
    learner, written = make_summing_learner(lambda: map(float, range(8)))
    assert learner.metrics() == {} and learner.num_steps == 0
    assert learner.seconds == {"priorities": 0.0, "publish": 0.0}
    started = time.perf_counter()
    learner.step()
    elapsed = time.perf_counter() - started
    assert learner.metrics() == {"reward": 3.5, "one": 1.0, "dropped_priority_batches": 3.0}
    assert learner.num_steps == 2
    assert learner.get_variables([LEARNER_STEPS]) == {f"{LEARNER_STEPS}/count": 2}
    assert [keys.shape for keys, _ in written] == [(2, 2)] * 2
    for keys, priorities in written:
        np.testing.assert_array_equal(keys, priorities)
    assert sorted(np.concatenate([np.ravel(keys) for keys, _ in written])) == list(range(8))
    assert min(learner.seconds.values()) > 0 and sum(learner.seconds.values()) < elapsed
    learner.close()
    assert written.is_closed


class Changed(Summing):
    """Applies a function to the step's output."""

    def __init__(self, change):
        super().__init__()
        self._change = change
        self.other = tf.Variable(0, dtype=tf.int64, trainable=False)
        # TensorFlow does not track it, unlike a list or a dictionary.
        self.hidden = types.SimpleNamespace(total=tf.Variable(0.0, name="total"))

    def step_fn(self, sample):
        return self._change(self, super().step_fn(sample))


class Uncounted(Changed):
    """Increments another variable than `num_steps`."""

    def step_fn(self, sample):
        self.other.assign_add(1)
        return StepOutput(sample.keys, sample.transition.reward, {})


def remember(module, output):
    """Counts in a variable that no checkpoint would find."""
    module.hidden.total.assign_add(1.0)
    return output


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        (Changed, remember, r"step of Changed assigns .*'total:0' \(\) is miss"),
        (Uncounted, None, r"increment num_steps, .* self.num_steps.assign_add"),
        (
            Changed,
            lambda _, out: out._replace(metrics={"loss": 1.0, "td": out.priorities}),
            r"\{'td': \(2,\)\}",
        ),
        (
            Changed,
            lambda _, out: out._replace(metrics=out.priorities),
            "Tensor.*; return a dictionary",
        ),
        (Changed, lambda _, out: out.metrics, r"StepOutput\(keys, priorities, metrics\), got dict"),
        (
            Changed,
            lambda _, out: out._replace(metrics={"dropped_priority_batches": 1.0}),
            "got one of this name; rename it",
        ),
        (
            Changed,
            lambda _, out: out._replace(priorities=tf.reduce_mean(out.priorities)),
            r"priorities of the shape of the keys, \(2,\), got \(\); return sample.keys, and one",
        ),
        (
            Changed,
            lambda _, out: out._replace(priorities=out.priorities[:, None]),
            r"\(2,\), got \(2, 1\)",
        ),
    ],
)
def test_a_step_that_a_run_could_not_use_is_refused_when_it_is_built(kind, change, found):
    with pytest.raises(ConfigError, match=found) as error:
        make_summing_learner(lambda: map(float, range(8)), lambda: kind(change))
    assert "\n" not in str(error.value)


def test_a_learner_that_waits_is_starved_and_can_be_cancelled():
    may_go_on = threading.Event()

    def make_rewards():
        yield from map(float, range(16))
        may_go_on.wait(60)
        yield from map(float, range(16, 24))

    learner, _ = make_summing_learner(make_rewards)
    learner.step()
    wait_until(lambda: not learner.starved())
    learner.step()
    assert learner.starved()
    errors = []

    def wait():
        try:
            learner.step()
        except rr.StepCancelled as error:
            errors.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive()
    learner.cancel()
    waiting.join(30)
    may_go_on.set()
    assert len(errors) == 1 and learner.num_steps == 4
    learner.close()
