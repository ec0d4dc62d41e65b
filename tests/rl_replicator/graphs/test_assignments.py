"""What counts as an assignment, and where one is found."""

import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.graphs import assignments
from rl_replicator.layers import statistics


def loop(body):
    """Runs `body` twice, in a loop on tensors."""
    return tf.while_loop(lambda i: i < 2, lambda i: (body(), i + 1)[1], [0])


def nested(body):
    return tf.function(lambda: tf.function(body)())()


def loss_of(v, function):
    with tf.GradientTape() as tape:
        tape.watch(v.handle)
        y = function(lambda: tf.reduce_sum(v**2))
    return tape.gradient(y, v)


ASSIGNED = {
    "assign": lambda v: v.assign([1.0, 2.0]),
    "fused": lambda v: tf.raw_ops.ResourceApplyGradientDescent(
        var=v.handle, alpha=0.1, delta=[1.0, 1.0]
    ),
    "in a function": lambda v: nested(lambda: v.assign_add([1.0, 1.0])),
    "in a branch": lambda v: tf.cond(
        tf.random.uniform([]) > 0, lambda: v.assign_sub([1.0, 1.0]), v.read_value
    ),
    "in a loop": lambda v: loop(lambda: v.assign([1.0, 2.0])),
    "in a branch of a loop of a function": lambda v: nested(
        lambda: loop(lambda: tf.cond(v[0] > 0, v.read_value, lambda: v.assign([1.0, 2.0])))
    ),
}
READ = {
    "read": lambda v: v * 2.0,
    "gathered": lambda v: tf.gather(v, [0]),
    "in a function": lambda v: nested(v.read_value),
    "in a branch": lambda v: tf.cond(tf.random.uniform([]) > 0, v.read_value, lambda: v * 2.0),
    "in a loop": lambda v: loop(v.read_value),
    "with a gradient": lambda v: loss_of(v, nested),
}


def found(function, *variables):
    graph = tf.function(function, autograph=False).get_concrete_function().graph
    return assignments.assigned(graph.captures, variables)


@pytest.mark.parametrize("name", ASSIGNED)
def test_an_assignment(name):
    variable, other = tf.Variable([0.0, 0.0]), tf.Variable([0.0, 0.0])

    def step():
        # The other variable is an argument of the same functions.
        ASSIGNED[name](variable)
        return nested(lambda: variable + other)

    assert [v is variable for v in found(step, other, variable)] == [True]


@pytest.mark.parametrize("name", READ)
def test_no_assignment(name):
    variable = tf.Variable([0.0, 0.0])
    assert found(lambda: READ[name](variable), variable) == []


def test_the_state_of_a_generator_that_goes_on_is_assigned():
    generator = tf.random.Generator.from_seed(1)
    assert len(found(lambda: generator.normal([2]), generator.state)) == 1
    assert len(found(lambda: nested(lambda: generator.normal([2])), generator.state)) == 1


@pytest.mark.parametrize("replicas", ["single_device", "multi_device:2"])
def test_variables_of_a_step(replicas):
    """The trained variables and the optimizer's, but none that the step only reads."""
    rr.split_cpu(2)
    replicator = rr.make(replicas)
    with replicator.scope():
        trained, frozen = snt.Linear(1), snt.Linear(1)
        for layer in (trained, frozen):
            layer(tf.zeros([1, 2]))
        norm = tf.keras.layers.BatchNormalization()
        norm(tf.zeros([1, 2]))
        unused = tf.Variable(0.0, name="unused")
        optimizer = replicator.wrap_optimizer(snt.optimizers.SGD(0.1), skip_nonfinite=True)

    def step_fn(x):
        fixed = tf.function(lambda x: frozen(norm(x, training=False)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(trained(x) * fixed(x))
        optimizer.apply(
            tape.gradient(loss, trained.trainable_variables), trained.trainable_variables
        )
        return loss + 0.0 * unused

    data = tf.data.Dataset.from_tensors(tf.ones([3, 2])).repeat()
    step = replicator.replicate(step_fn, replicator.make_inputs(lambda context: data))
    expected = {id(v) for v in (*trained.variables, *optimizer.variables)}
    assert {id(v) for v in step.assigned_variables()} == expected


def test_statistics_that_a_function_reads_are_not_written():
    """Otherwise a skipped step would restore them, and a step on replicas would exchange them."""
    statistic = tf.Variable(1.0, trainable=False, aggregation=tf.VariableAggregation.MEAN)
    written = []

    def note():
        written.append(len(statistics.written([statistic])))
        return 0

    @tf.function
    def step():
        nested(statistic.read_value)
        note()
        nested(lambda: statistic.assign(2.0))
        tf.cond(statistic > 0, note, lambda: 0)

    step.get_concrete_function()
    assert written == [0, 1]
