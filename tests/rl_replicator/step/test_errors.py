"""Errors of a step on several replicas say what is wrong; silent faults are refused."""

import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import collectives
from rl_replicator.collectives import sums


def make_step(step_fn):
    replicator = rr.make("multi_device:2")
    data = tf.data.Dataset.from_tensors(tf.ones([2, 2])).repeat()
    return replicator.replicate(step_fn, replicator.make_inputs(lambda context: data))


@pytest.mark.parametrize("before", [lambda x: None, collectives.all_mean])
def test_an_error_of_the_step_is_raised_as_it_is(before):
    def step_fn(x):
        before(x)
        raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        make_step(step_fn)()


def test_what_a_collective_refuses_is_said():
    """The first replica has recorded the collective, which the second one has not reached."""
    with pytest.raises(rr.ConfigError, match="expected numbers in a sum, got bools"):
        make_step(lambda x: collectives.all_sum(x > 0))()


def test_replicas_that_part_before_an_error_are_named():
    def step_fn(x):
        if sums.static_replica_id():
            collectives.all_max(x)
            raise KeyError("of the user")
        return collectives.all_sum(x)

    with pytest.raises(rr.ConfigError, match="in call 1 replica 0 has .*sum.* replica 1 has .*max"):
        make_step(step_fn)()


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (lambda x: {"a": x}, lambda x: {"a": x, "b": -x}, r"{a: a tensor}, .*{a: .*, b: a tensor}"),
        (lambda x: [x, None], lambda x: [None, x], r"\[a tensor, None\], .* \[None, a tensor\]"),
        (lambda x: x, lambda x: (x, x), r"a tensor, .* \(a tensor, a tensor\)"),
    ],
)
def test_replicas_that_return_different_nests_are_named(ours, theirs, message):
    """The tensors of one replica would be taken for those of another."""
    with pytest.raises(rr.ConfigError, match=f"in call 1 replica 0 has results {message}"):
        make_step(lambda x: theirs(x) if sums.static_replica_id() else ours(x))()


def test_collectives_are_refused_where_they_would_see_single_rows():
    def jacobian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = collectives.all_sum(tf.reduce_sum(x**2, axis=1))
        return tape.jacobian(y, x)

    with pytest.raises(rr.ConfigError, match="outside of tf.vectorized_map"):
        make_step(lambda x: tf.vectorized_map(collectives.all_sum, x))()
    with pytest.raises(Exception, match="experimental_use_pfor"):
        make_step(jacobian)()


@pytest.mark.parametrize("name", ["single_device", "multi_device:2"])
def test_a_step_in_a_step_or_a_function_is_refused(name):
    replicator = rr.make(name)
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))
    step = replicator.replicate(lambda x: x, inputs)
    with pytest.raises(rr.ConfigError, match="call of a step outside of other steps"):
        replicator.replicate(lambda x: step(), inputs)
    with pytest.raises(rr.ConfigError, match="call the step's own function there"):
        tf.function(lambda: step())()
    assert (replicator.gather(step()) == 1.0).all()


def test_a_scope_in_a_step_is_refused():
    replicator = rr.make("multi_device:2")
    inputs = replicator.make_inputs(lambda context: lambda: tf.constant(1.0))

    def step_fn(x):
        with replicator.scope():
            return x

    for function in (step_fn, lambda x: replicator.replicate(lambda y: y, inputs)):
        with pytest.raises(rr.ConfigError, match=r"scope\(\) and replicate\(\) outside of steps"):
            replicator.replicate(function, inputs)
