"""A chief, a worker or a parameter server for test_asynchronous.py.

`asynchronous_program.py REPORT TIMEOUT NAMES...`: the chief runs the named functions and writes to
REPORT, for each, what went wrong. TIMEOUT is `worker_timeout`. REPORT.pids maps the tasks of the
other processes, such as "worker 1", to their process ids.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import checkpoints, learners
from rl_replicator.backends.parameter_server import scheduler
from rl_replicator.checkpoints import parts
from rl_replicator.jobs import ports
from rl_replicator.learners.loop import Training
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.runs.run_directory import RunDirectory
from tests.conformance import regression
from tests.rl_replicator.learners import tiny_learners
from tests.suite import forked

FEATURES = 5
DETAILS: dict[str, object] = {}


def set_bound(replicator, max_staleness):
    replicator.synchronize()
    replicator._schedule._bound = scheduler.Bound(max_staleness, replicator.num_workers)


def numbers(count):
    """Returns an input function for 0 to `count` - 1, sharded over the workers."""
    return lambda context: context.shard(tf.data.Dataset.range(count))


def ones(context):
    return tf.data.Dataset.from_tensors(1.0).repeat()


def batch():
    return np.random.default_rng(0).normal(size=(64, FEATURES)).astype(np.float32)


def the_same_batch(context):
    return tf.data.Dataset.from_tensors(batch()).repeat()


def make_learner(replicator, optimizer_class=rr.optimizers.Adam):
    with replicator.scope():
        model = snt.nets.MLP([16, 1], w_init=snt.initializers.Constant(0.0))
        model(tf.zeros([1, FEATURES]))
        optimizer = replicator.wrap_optimizer(optimizer_class(1e-2))
    replicator.build_optimizer(optimizer, model.trainable_variables)
    regression.set_weights(model)
    return model, optimizer, regression.make_step_fn(model, optimizer)


def pause(seconds):
    """Sleeps for a number of seconds on the worker, inside the graph."""
    one = tf.data.Dataset.range(1)
    form = {"output_types": [tf.int64], "output_shapes": [[]]}
    late = tf.raw_ops.SleepDataset(
        input_dataset=tf.data.experimental.to_variant(one),
        sleep_microseconds=tf.cast(seconds * 1e6, tf.int64),
        **form,
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=late, **form)[0]


def elements_of_all_workers_are_used_once(replicator):
    def step_fn(element):
        x = element["x"]
        return {
            "i": x,
            "u": tf.cast(x, tf.uint64) + 2**63,
            "h": tf.cast(x, tf.bfloat16),
            "s": tf.strings.as_string(x),
            "nothing": element["nothing"],
        }

    def with_nothing(x):
        return {"nothing": None, "x": x}

    for steps_per_call, count in ((None, 17), (4, 18)):
        data = numbers(count)
        inputs = replicator.make_inputs(lambda context, data=data: data(context).map(with_nothing))
        step = replicator.replicate(step_fn, inputs, steps_per_call)
        for _ in range(2):  # The second pass follows a restart.
            seen = []
            with pytest.raises(rr.EndOfData):
                while True:
                    outputs = replicator.gather(step())
                    size = min(steps_per_call or 1, count - len(seen))  # The last is shorter.
                    assert outputs["i"].shape == ((1,) if steps_per_call is None else (1, size))
                    assert outputs["nothing"] is None
                    i = outputs["i"].ravel()
                    assert (outputs["u"].ravel() == i.astype(np.uint64) + np.uint64(2**63)).all()
                    assert (outputs["h"].ravel().astype(np.int64) == i).all()
                    assert outputs["s"].ravel().tolist() == [str(n).encode() for n in i]
                    seen.extend(i.tolist())
            with pytest.raises(rr.EndOfData):
                step()
            # The order is not guaranteed: results arrive as the workers' calls finish.
            assert sorted(seen) == list(range(count))
            assert inputs.position == count
            inputs.restart()


def a_call_takes_no_more_steps_than_asked(replicator):
    """Workers end calls early if data arrives late; other steps may need the next elements."""
    set_bound(replicator, 0)

    def late(x):
        with tf.control_dependencies([pause(0.3)]):
            return tf.identity(x)

    def input_fn(context):  # The dataset's length is unknown.
        return tf.data.Dataset.range(6).filter(lambda x: x >= 0).map(late)

    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(lambda x: x, inputs, 3)
    for calls in (1, 2):
        assert step().shape == (3,)
        assert inputs.position == 3 * calls
    set_bound(replicator, None)


def an_mlp_learns(replicator):
    x = np.random.default_rng(2).normal(size=(1024, FEATURES)).astype(np.float32)

    def input_fn(context):
        size = context.per_replica_batch_size(64)
        assert size == 64
        mine = context.shard(tf.data.Dataset.from_tensor_slices(x))
        return mine.shuffle(512, seed=context.input_pipeline_id).batch(size).repeat()

    _, _, step_fn = make_learner(replicator)
    inputs = replicator.make_inputs(input_fn)
    step = replicator.replicate(step_fn, inputs, 20)
    first = replicator.reduce("mean", step()).mean()
    for _ in range(30):
        last = replicator.reduce("mean", step()).mean()
    replicator.synchronize()
    # Each worker runs up to two calls ahead.
    assert 620 <= inputs.position <= 620 + 4 * 20 and inputs.position % 20 == 0
    assert last < 0.05 * first, (first, last)
    DETAILS["learning"] = [float(first), float(last)]


def staleness_is_bounded_with_a_slow_worker(replicator):
    """Worker 0 takes long between its read and its update; the other does not wait for it."""
    with replicator.scope():
        version, seconds = tf.Variable(0, dtype=tf.int64), tf.Variable(0.2)

    def step_fn(worker):
        read = version.read_value()
        with tf.control_dependencies([read]):
            waited = pause(tf.where(tf.equal(worker, 0), seconds.read_value(), 0.01))
        with tf.control_dependencies([waited]), tf.device(version.device):
            # Reads and increments in one operation.
            now = tf.raw_ops.ResourceCountUpTo(resource=version.handle, limit=1 << 40, T=tf.int64)
        return worker, now - read

    def input_fn(context):
        return tf.data.Dataset.from_tensors(context.input_pipeline_id).repeat()

    DETAILS["bounds"] = []
    for bound, steps_per_call, least in ((None, None, 7), (3, None, 1), (1, 2, 0)):
        set_bound(replicator, bound)
        step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), steps_per_call)
        workers, stale = [], []
        # How many steps one worker takes during one step of the other depends on the load.
        deadline = time.monotonic() + 60
        while (few := min(workers.count(0), workers.count(1)) < 3) or (
            max(stale) < least and time.monotonic() < deadline
        ):
            if not few:
                seconds.assign(min(10.0, 1.2 * seconds.numpy()))
            for found, values in zip((workers, stale), step(), strict=True):
                found.extend(np.atleast_1d(values.numpy()).tolist())
        replicator.synchronize()
        DETAILS["bounds"].append([bound, steps_per_call, np.mean(stale), max(stale)])
        assert least <= max(stale) <= (np.inf if bound is None else bound)
    set_bound(replicator, None)


def a_callable_for_every_worker(replicator):
    def input_fn(context):
        return lambda: tf.constant(10 * (1 + context.input_pipeline_id))

    def step_fn(x):
        pause(0.01)
        return rr.collectives.all_gather(x), rr.collectives.num_replicas()

    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn), 2)
    seen = set()
    deadline = time.monotonic() + 60
    while len(seen) < 2 and time.monotonic() < deadline:
        seen |= {tuple(x) for x in replicator.reduce("sum", step())[0].tolist()}
    assert seen == {(10,), (20,)}


def two_steps_share_one_input(replicator):
    inputs = replicator.make_inputs(numbers(40))
    plus = replicator.replicate(lambda x: x, inputs)
    minus = replicator.replicate(lambda x: -x, inputs, 2)
    seen = []
    with pytest.raises(rr.EndOfData):
        while True:
            seen.append(plus().numpy())
            seen.extend(minus.begin().result().numpy())
    with pytest.raises(rr.EndOfData):  # The other step has results left.
        while True:
            seen.append(plus().numpy())
    with pytest.raises(rr.EndOfData):
        while True:
            seen.extend(minus().numpy())
    # Only steps of `minus` that do not fill a call are missing.
    assert len(set(np.abs(seen))) == len(seen) >= 39 and inputs.position == 40


def a_restart_begins_a_whole_pass(replicator):
    """Also while calls of the previous pass still run, which count their rows and may fail."""
    with replicator.scope():
        bad = tf.Variable(0.0)

    def step_fn(x):
        pause(0.05)
        return x + tf.cast(tf.debugging.check_numerics(bad + 0.0, "bad"), tf.int64)

    inputs = replicator.make_inputs(numbers(6))
    step = replicator.replicate(step_fn, inputs)

    def rest():
        seen = []
        with pytest.raises(rr.EndOfData):
            while True:
                seen.append(int(step()))
        return sorted(seen)

    step()
    inputs.restart()
    assert rest() == list(range(6)) and inputs.position == 6
    inputs.restart()
    inputs.go_to(3)
    assert rest() == [3, 4, 5] and inputs.position == 6
    inputs.restart()
    bad.assign(np.nan)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
        step()
    inputs.restart()
    bad.assign(0.0)
    assert rest() == list(range(6))


def a_step_that_waits_for_data_is_cancelled(replicator):
    with tempfile.TemporaryDirectory() as folder, replicator.scope():
        flag = pathlib.Path(folder, "flag")
        count = tf.Variable(0)

        def is_there():
            # The clock keeps TensorFlow from folding the first answer into a constant.
            suffix = tf.where(tf.timestamp() > 0.0, "", "never")
            return tf.size(tf.io.matching_files(tf.strings.join([str(flag), suffix]))) > 0

        def wait(i):
            there = i < 2
            while not there:
                there = is_there()
            return there

        source = tf.data.Dataset.range(100).filter(wait)
        inputs = replicator.make_inputs(lambda context: source)
        step = replicator.replicate(lambda x: (x, count.assign_add(1)), inputs, 5)

        def cancel():
            while count.numpy() < 4:
                time.sleep(0.1)
            step.cancel()

        threading.Timer(0.3, cancel).start()
        with pytest.raises(rr.StepCancelled):
            step()
        replicator.synchronize()  # It must not wait for the data, of which none would come.
        assert count.numpy() == 4
        flag.touch()
        seen = np.concatenate([step()[0].numpy() for _ in range(4)])
        assert sorted(seen)[:4] == [0, 0, 1, 1]
        inputs = replicator.make_inputs(ones)
        step = replicator.replicate(lambda x: x, inputs)
        step.cancel()
        with pytest.raises(rr.StepCancelled):
            step()
        assert step().numpy() == 1
        inputs.close()
        with pytest.raises(rr.EndOfData, match="closed"):
            step()


def errors_reach_the_caller(replicator):
    def check(i):
        return tf.debugging.check_numerics(1.0 / tf.cast(4 - i, tf.float32), "bad")

    source = tf.data.Dataset.range(100)
    of_input = replicator.replicate(
        lambda x: x, replicator.make_inputs(lambda context: source.map(check))
    )
    of_step = replicator.replicate(check, replicator.make_inputs(lambda context: source))
    for step in (of_input, of_step):
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad"):
            for _ in range(12):
                step()
    fine = replicator.replicate(lambda x: x, replicator.make_inputs(ones))
    assert [fine().numpy() for _ in range(5)] == [1.0] * 5
    inputs = replicator.make_inputs(lambda context: tf.data.Dataset.range(6).batch(4))
    with pytest.raises(rr.ConfigError, match="same shape in all steps of a call"):
        replicator.replicate(lambda x: x, inputs, 2)()


def misuse_has_one_line(replicator):
    def generated(context):
        return tf.data.Dataset.from_generator(
            lambda: iter([1.0]), output_signature=tf.TensorSpec([], tf.float32)
        )

    with pytest.raises(rr.ConfigError, match="with Python code"):
        replicator.make_inputs(generated)
    outside = tf.Variable([1.0, 2.0], name="from_outside")
    with pytest.raises(rr.ConfigError, match=r"'from_outside:0' \(2,\) from outside"):
        replicator.replicate(lambda x: outside * x, replicator.make_inputs(ones))
    inputs = replicator.make_inputs(ones)
    replicator.replicate(lambda x: x, inputs)()
    with pytest.raises(rr.ConfigError, match="no step was taken"):
        inputs.go_to(3)


def concurrent_evaluations_of_keras_models_are_refused(replicator):
    def model_fn(config: learners.KerasConfig) -> tf.keras.Model:
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        return model

    def data_fn(config):
        return tf.data.Dataset.from_tensor_slices((batch(), batch()[:, :1]))

    config = learners.KerasConfig()
    with pytest.raises(rr.ConfigError, match="got asynchronous workers; .*max_staleness=0"):
        learners.from_keras(model_fn, data_fn, data_fn)(replicator, config)
    learners.from_keras(model_fn, data_fn)(replicator, config)


def padded_evaluation_sees_every_example_once(replicator):
    def input_fn(context):
        mine = context.shard(tf.data.Dataset.range(23))
        return mine.batch(4)

    step = replicator.replicate(
        lambda element: (tf.reduce_sum(element[1]), tf.reduce_sum(element[0])),
        replicator.make_inputs(input_fn, pad_to=4),
    )
    examples = total = 0
    with pytest.raises(rr.EndOfData):
        while True:
            some, part = step()
            examples, total = examples + int(some), total + int(part)
    assert (examples, total) == (23, sum(range(23)))
    evaluation = replicator.make_evaluation(
        lambda values, mask: tf.reduce_sum(tf.cast(values, tf.float32) * mask), input_fn, 4
    )
    assert [evaluation(), evaluation()] == [sum(range(23))] * 2


def slots_are_on_the_server_of_their_parameter(replicator):
    """Otherwise the fused update of a parameter could not be placed on any server."""
    for build, optimizer_class in ((False, rr.optimizers.Adam), (True, tf.keras.optimizers.Adam)):
        with replicator.scope():
            # Each variable goes to the server with the fewest bytes.
            sizes = 2 * (7000, 3000, 9000, 1000, 8000)
            parameters = [tf.Variable(tf.ones([size])) for size in sizes]
            optimizer = replicator.wrap_optimizer(optimizer_class(0.1))
        if build:
            replicator.build_optimizer(optimizer, parameters)

        def step_fn(x, parameters=parameters, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(x) * tf.add_n([tf.reduce_sum(p) for p in parameters])
            gradients = tape.gradient(loss, parameters)
            if hasattr(optimizer, "apply"):
                optimizer.apply(gradients, parameters)
            else:
                optimizer.apply_gradients(zip(gradients, parameters, strict=True))
            return loss

        step = replicator.replicate(step_fn, replicator.make_inputs(the_same_batch))
        step()
        slots = optimizer.m if hasattr(optimizer, "m") else optimizer._momentums
        assert len({p.device for p in parameters}) == 2
        assert [s.device for s in slots] == [p.device for p in parameters]
        replicator.synchronize()
        assert all(np.abs(p.numpy() - 1.0).min() > 0.05 for p in parameters)


class Counting(tiny_learners.Regression):
    """Counts its steps in a variable; each takes a while, so that some run during a save."""

    def __init__(self, replicator, config):
        super().__init__(replicator, config)
        with replicator.scope():
            self.count = tf.Variable(0, dtype=tf.int64)

    def step_fn(self, batch):
        metrics = super().step_fn(batch)
        with tf.control_dependencies([pause(0.1)]):
            self.count.assign_add(1)
        return metrics

    def trackables(self):
        return super().trackables() | {"count": self.count}

    def evaluation(self):
        return None


def a_checkpoint_of_a_run_is_a_snapshot(replicator):
    """Its step count equals the number of steps in its variables."""
    with tempfile.TemporaryDirectory() as folder:
        learner = Counting(replicator, tiny_learners.Config(steps=6))
        run, options = RunDirectory(pathlib.Path(folder)), RunOptions(steps_per_call=1)
        assert Training(replicator, learner, run, options).run() is None
        found = checkpoints.Checkpointer(pathlib.Path(folder, "checkpoints")).latest().path
        count = parts.VariableValues.read(found / "learner")["count"]
        assert json.loads((found / "progress" / "state.json").read_text())["batches"] == count
        assert count >= 6


def a_killed_worker_comes_back(replicator):
    def step_fn(worker):
        pause(0.01)
        return worker

    def input_fn(context):
        return tf.data.Dataset.from_tensors(context.input_pipeline_id).repeat()

    step = replicator.replicate(step_fn, replicator.make_inputs(input_fn))
    while step().numpy() != 1:  # Until worker 1 has taken a step.
        pass
    kill("worker 1", signal.SIGKILL)
    killed = time.monotonic()
    alone = 0
    while time.monotonic() - killed < 2 or alone < 20:
        alone += int(step().numpy() == 0)
    start_worker_again()
    begun = time.monotonic()
    while step().numpy() != 1:
        assert time.monotonic() - begun < 120
    DETAILS["returned_after"] = time.monotonic() - begun
    replicator.synchronize()


def start_worker_again():
    configuration = json.loads(os.environ["TF_CONFIG"])
    configuration["task"] = {"type": "worker", "index": 1}
    environment = {**os.environ, "TF_CONFIG": json.dumps(configuration)}
    again = subprocess.Popen([*forked.python(), *sys.argv], env=environment)
    others = dict(process_ids(), **{"worker 1": forked.program(again)})
    pathlib.Path(f"{sys.argv[1]}.pids").write_text(json.dumps(others))


def a_killed_chief_finds_its_servers_again(replicator):
    """Runs twice: the first chief is killed."""
    model, optimizer, step_fn = make_learner(replicator)
    before = [variable.numpy() for variable in model.trainable_variables]
    step = replicator.replicate(step_fn, replicator.make_inputs(the_same_batch), 5)
    losses = [step().numpy() for _ in range(4)]
    assert losses[-1][-1] < losses[0][0]
    replicator.synchronize()
    assert optimizer.step.numpy() >= 20
    was_here = pathlib.Path(f"{sys.argv[1]}.start")
    if not was_here.exists():
        np.savez(was_here.open("wb"), *before)
        os.kill(os.getpid(), signal.SIGKILL)
    with np.load(was_here) as first:  # The first chief's training left no trace in these variables.
        for name, value in zip(first.files, before, strict=True):
            np.testing.assert_array_equal(first[name], value)


def a_killed_server(replicator):
    step = replicator.replicate(make_learner(replicator)[2], replicator.make_inputs(the_same_batch))
    step()
    kill("ps 0", signal.SIGKILL)
    expect_loss(step, r"ps 0 \(127.0.0.1:\d+\) is (gone|cut off).* from its last checkpoint", 60)
    deadline = time.monotonic() + 20  # Whether or not calls are still open:
    while replicator._schedule._bound.num_open and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(rr.WorkerLost):
        replicator.synchronize()


def a_frozen_worker(replicator):
    step = replicator.replicate(make_learner(replicator)[2], replicator.make_inputs(the_same_batch))
    step()
    kill("worker 0", signal.SIGSTOP)
    expect_loss(step, r"worker 0 \(127.0.0.1:\d+\) has not answered for 16 s", 80)
    kill("worker 0", signal.SIGCONT)


def expect_loss(step, match, seconds):
    begun = time.monotonic()
    with pytest.raises(rr.WorkerLost, match=match) as caught:
        while True:
            step()
    DETAILS["noticed_after"] = time.monotonic() - begun
    DETAILS["error"] = str(caught.value)
    assert DETAILS["noticed_after"] < seconds


def process_ids():
    return json.loads(pathlib.Path(f"{sys.argv[1]}.pids").read_text())


def kill(task, number):
    os.kill(process_ids()[task], number)


def act_as_on_several_machines():
    """Makes a server behave as if its chief ran on another machine."""
    confine = ports.confine_if_local
    ports.confine_if_local = lambda *addresses: confine(*addresses) and False


def main():
    report = {}
    if "a_killed_chief_finds_its_servers_again" in sys.argv[3:]:
        act_as_on_several_machines()
    replicator = rr.MultiWorkerAsyncReplicator(start_timeout=200, worker_timeout=float(sys.argv[2]))
    DETAILS["seconds"] = {}
    for name in sys.argv[3:]:
        begun = time.monotonic()
        try:
            globals()[name](replicator)
            report[name] = None
        except BaseException:
            report[name] = traceback.format_exc()
        DETAILS["seconds"][name] = round(time.monotonic() - begun, 2)
    pathlib.Path(sys.argv[1]).write_text(json.dumps([report, DETAILS]))


if __name__ == "__main__":
    main()
