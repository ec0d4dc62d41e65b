"""The loop: where it stops and goes on, what it keeps, what it refuses."""

import dataclasses
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator import errors
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.learners.loop import Training, is_finished
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.processes import signals
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run import RunListener
from rl_replicator.runs.run_directory import RunDirectory
from tests.rl_replicator.learners.tiny_learners import (
    Alternating,
    Compared,
    Config,
    Overflowing,
    Regression,
    Stalling,
    Waiting,
    WaitingForReference,
    X,
    Y,
)

pytestmark = pytest.mark.usefixtures("plain_graphs")


def make(
    kind,
    path,
    replicas="single_device",
    steps_per_call=5,
    seconds=1000.0,
    is_exact=False,
    **settings,
):
    replicator = rr.make(replicas)
    learner = kind(replicator, dataclasses.replace(Config(), **settings))
    options = RunOptions(
        steps_per_call=steps_per_call, checkpoint_seconds=seconds, deterministic=is_exact
    )
    return learner, Training(replicator, learner, RunDirectory(path), options)


def evaluated(**functions):
    """A learner with other functions in its evaluation."""

    class Odd(Regression):
        def evaluation(self):
            return dataclasses.replace(super().evaluation(), **functions)

    return Odd


def measured(metrics):
    """A learner whose step returns a function of its loss."""
    step_fn = Regression.step_fn
    own = {"step_fn": lambda self, batch: metrics(step_fn(self, batch)["loss"])}
    return type("Odd", (Regression,), own)


def fed(batches):
    """A learner with other data, in batches of its own."""

    def input_fn(self, context):
        return batches(tf.data.Dataset.from_tensor_slices((X, Y)))

    return type("Odd", (Regression,), {"input_fn": input_fn})


def noisy_sums(batch, mask):
    return {"error": tf.reduce_sum(mask * tf.random.normal([])), "examples": tf.reduce_sum(mask)}


SCALARS = "real scalars by name, .*, got "
NUMBERS = "metrics_fn to return numbers by name.* got "
DRAWN_ANEW = r"can draw again, found RandomStandardNormal \(.*\); use tf.random.stateless_\*"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (Regression, {"best": "accuracy"}, "one of error, examples, got 'accuracy'"),
        (
            evaluated(metrics_fn=lambda sums: {"error": sums["eror"]}),
            {},
            r"the sums that sums_fn returns \(error, examples\), got 'eror'; correct",
        ),
        (evaluated(metrics_fn=lambda sums: None), {}, f"{NUMBERS}None;"),
        (
            evaluated(metrics_fn=lambda sums: {"error": "good"}),
            {},
            f"{NUMBERS}{{'error': 'good'}};",
        ),
        (Regression, {"every": 0}, "whole number of at least 1, got 0; round"),
        (Regression, {"every": 20.0}, "whole number of at least 1, got 20.0; round"),
        (
            measured(lambda loss: {"errors": tf.stack([loss, loss])}),
            {},
            rf"{SCALARS}errors: float32 \[2\]; return",
        ),
        (
            measured(lambda loss: {"loss": loss, "aux": {"a": loss}}),
            {},
            rf"{SCALARS}loss: float32 \[\], aux: a: float32",
        ),
        (measured(lambda loss: {"loss": tf.constant("low")}), {}, rf"{SCALARS}loss: string \[\]"),
        (measured(lambda loss: {"loss": tf.random.normal([])}), {"is_exact": True}, DRAWN_ANEW),
        (evaluated(sums_fn=noisy_sums), {"is_exact": True}, DRAWN_ANEW),
        (
            fed(lambda data: data.repeat().batch(7, drop_remainder=True)),
            {"replicas": "multi_device:2"},
            r"batches of 6 examples \(2 replicas share the global batch\), got 7; batch ",
        ),
        (
            fed(lambda data: data.repeat().batch(7)),
            {"replicas": "multi_device:2"},
            "batches of 6 examples .*, got another number; batch the data with",
        ),
        (
            fed(lambda data: data.batch(12)),
            {"steps": 10, "steps_per_call": 10},
            "for 10 steps, but it ended after 5; repeat",
        ),
        (
            fed(lambda data: data.take(7).batch(12, drop_remainder=True).repeat()),
            {},
            "ended after 0; a whole batch is missing: repeat",
        ),
    ],
)
def test_what_is_refused(tmp_path, kind, settings, message):
    with pytest.raises(errors.ConfigError, match=message) as error:
        make(kind, tmp_path, **settings)[1].run()
    assert "\n" not in str(error.value) and Checkpointer(tmp_path / "checkpoints").is_empty


def interrupted(kind, *numbers):
    """A learner whose 14th batch sends this process signals, by default SIGINT."""

    class Interrupted(kind):
        def input_fn(self, context):
            def send(number):
                if number == 13:
                    for one in numbers or (signal.SIGINT,):
                        os.kill(os.getpid(), one)
                return number

            def pass_on(number, batch):
                with tf.control_dependencies([tf.numpy_function(send, [number], tf.int64)]):
                    return tf.nest.map_structure(tf.identity, batch)

            return super().input_fn(context).enumerate().map(pass_on)

    return Interrupted


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    learner, training = make(Regression, tmp_path_factory.mktemp("run"))
    assert training.run() is None
    return learner.w.numpy()


def test_a_whole_run(tmp_path, uninterrupted):
    learner, training = make(Regression, tmp_path, "multi_device:2", steps_per_call=10)
    assert training.run() is None
    assert training.step == 40
    table = read_metrics(tmp_path, "evaluation")
    np.testing.assert_array_equal(table["steps"], [15, 30, 40])  # Not all are multiples of ten.
    np.testing.assert_array_equal(table["examples"], [37, 37, 37])
    assert learner.drawn == [15, 30, 40]
    assert len(list((tmp_path / "weights").glob("00000*.png"))) == 3
    assert list((tmp_path / "tensorboard" / "weights").iterdir())
    assert read_metrics(tmp_path, "train")["steps"][-1] == 40
    assert Checkpointer(tmp_path / "best").latest().step == 40  # With the lowest error.
    np.testing.assert_allclose(learner.w.numpy(), uninterrupted, rtol=1e-5)


def test_interrupted_and_resumed(tmp_path, uninterrupted):
    _, training = make(interrupted(Regression), tmp_path, steps_per_call=4)
    assert training.run() == signal.SIGINT
    stopped = training.step
    assert 0 < stopped < 40
    learner, training = make(Regression, tmp_path, "multi_device:2")
    assert training.step == stopped
    assert training.run() is None
    np.testing.assert_allclose(learner.w.numpy(), uninterrupted, rtol=1e-5)


@pytest.mark.parametrize(
    "numbers",
    [
        (signal.SIGHUP, signal.SIGHUP),  # The kernel sends one, and then the shell does.
        # Of a job: it reaches a worker directly, and then through the supervisor.
        (signal.SIGTERM, signal.SIGTERM, signal.SIGINT),
    ],
)
def test_signals_that_come_more_than_once_save(tmp_path, monkeypatch, numbers):
    class Interrupted(Regression):
        def evaluation(self):
            evaluation = super().evaluation()

            def metrics_fn(sums):
                for number in numbers if self.optimizer.step > 0 else ():
                    os.kill(os.getpid(), number)
                return evaluation.metrics_fn(sums)

            return dataclasses.replace(evaluation, metrics_fn=metrics_fn)

    if len(numbers) == 3:
        monkeypatch.setenv(signals.SUPERVISED, "1")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # It may be ignored, as under `nohup`.
    try:
        _, training = make(Interrupted, tmp_path)
        assert training.run() == numbers[0]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert Checkpointer(tmp_path / "checkpoints").latest().step == training.step < 40


@pytest.mark.parametrize(
    ("steps", "end", "saved", "evaluated"), [(10, 10, 10, [10]), (40, 15, 18, [18, 30, 40])]
)
def test_asynchronous_workers_run_ahead_of_a_stop(
    tmp_path, monkeypatch, steps, end, saved, evaluated
):
    """Steps beyond the end are not counted, and an evaluation that was missed is made up for."""
    _, training = make(Regression, tmp_path, steps=steps)
    absorb = training._absorb

    def stop(call, outputs):
        count = absorb(call, outputs)
        if call.batch + call.count == end:
            training._steps._before += 3
            raise errors.StepCancelled("Ctrl-C")
        return count

    monkeypatch.setattr(training, "_absorb", stop)
    assert training.run() == signal.SIGTERM
    assert Checkpointer(tmp_path / "checkpoints").latest().step == saved
    learner, training = make(Regression, tmp_path, steps=steps)
    assert not is_finished(RunDirectory(tmp_path), learner)
    assert training.run() is None
    assert read_metrics(tmp_path, "evaluation")["steps"].tolist() == evaluated
    assert is_finished(RunDirectory(tmp_path), learner)


def test_a_live_run_is_measured_with_figures_and_weights_of_one_checkpoint(tmp_path):
    make(Regression, tmp_path, steps=10)[1].run()

    class Live(Regression):
        """The run saves twice while this learner is compiled, which removes the old checkpoint."""

        def trackables(self):
            make(Regression, tmp_path, steps=20)[1].run()
            return super().trackables()

    _, training = make(Live, tmp_path)
    table = read_metrics(tmp_path, "evaluation")
    assert training.step == table["steps"][-1] == 20
    assert training.measure()["error"] == pytest.approx(table["error"][-1])


def test_interrupted_between_phases(tmp_path):
    _, training = make(interrupted(Alternating), tmp_path, steps=8, steps_per_call=1)
    assert training.run() == signal.SIGINT
    learner, training = make(Alternating, tmp_path, steps=8)
    training.run()
    assert f"{learner.log.numpy():032b}" == "0001" * 8 and training.step == 8
    assert set(read_metrics(tmp_path, "train")) == {"steps", "wall_time", "many_loss", "one_log"}


def test_phases_of_a_run_that_is_continued_take_as_many_batches(tmp_path):
    class Changed(Alternating):
        def phases(self):
            return super().phases()[1:]

    make(Alternating, tmp_path, steps=5)[1].run()
    with pytest.raises(errors.ConfigError, match=r"phases\(\) that take 4 batches .*, got 1; give"):
        make(Changed, tmp_path, steps=30)
    assert make(Alternating, tmp_path, steps=6)[1].step == 5


def test_a_kill_between_two_checkpoints_does_not_lose_the_best_one(tmp_path, monkeypatch):
    """A run that is killed there continues after the evaluation, whose weights must be saved."""
    write, found = Checkpointer._write, {}

    def slow(self, step, parts):
        if self._directory.name == "best":
            time.sleep(0.3)
        info = write(self, step, parts)
        if self._directory.name == "checkpoints":
            found[step] = Checkpointer(tmp_path / "best").latest()
        return info

    monkeypatch.setattr(Checkpointer, "_write", slow)
    make(Regression, tmp_path)[1].run()
    assert {step: best and best.step for step, best in found.items()} == {15: 15, 30: 30, 40: 40}


class Judged(Regression):
    """The scores of its evaluations are given."""

    scores = {5: 0.5, 10: 0.9, 15: 0.3, 20: 0.2}

    def evaluation(self):
        def metrics_fn(sums):
            return {"score": self.scores[int(self.optimizer.step)]}

        return dataclasses.replace(super().evaluation(), metrics_fn=metrics_fn)


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """A run of 10 steps, whose best checkpoint is its last."""
    path = tmp_path_factory.mktemp("judged") / "run"
    make(Judged, path, steps=10, every=5, best="score")[1].run()
    return path


def lose_the_last(run):
    shutil.rmtree(Checkpointer(run / "checkpoints").latest().path)


def damage_the_best(run):
    (Checkpointer(run / "best").latest().path / "manifest.json").write_text("?")


@pytest.mark.parametrize(
    ("fault", "now", "scores", "best"),
    [
        (None, "score", {}, 10),
        (None, "-score", {}, 20),  # 0.9 at step 10, then 0.3 and 0.2.
        (None, "score", {15: 0.9}, 15),  # The newest of equal ones.
        # The run was killed after the best checkpoint was saved, and before the next one was.
        (lose_the_last, "score", {10: 0.4, 15: 0.5}, 10),
        (damage_the_best, "score", {}, 15),  # The next evaluation is the best so far.
    ],
)
def test_the_best_checkpoint_of_a_continued_run(
    tmp_path, monkeypatch, caplog, judged, fault, now, scores, best
):
    run = shutil.copytree(judged, tmp_path / "run")
    if fault is not None:
        fault(run)
    monkeypatch.setattr(Judged, "scores", Judged.scores | scores)
    make(Judged, run, steps=20, every=5, best=now)[1].run()
    assert Checkpointer(run / "best").latest().step == best
    found = read_metrics(run, "evaluation")["score"].tolist()
    assert found == [*Judged.scores.values()]
    assert ("counts as the best one so far" in caplog.text) == (fault is damage_the_best)


def test_a_mistake_in_the_figures_loses_no_steps(tmp_path):
    class Failing(Regression):
        def evaluation(self):
            def metrics_fn(sums):
                raise ZeroDivisionError

            return dataclasses.replace(super().evaluation(), metrics_fn=metrics_fn)

    _, training = make(Failing, tmp_path)
    with pytest.raises(ZeroDivisionError):
        training.run()
    assert Checkpointer(tmp_path / "checkpoints").latest().step == 15
    make(Regression, tmp_path, steps=15)[1].run()  # Repeats the evaluation that failed.
    assert read_metrics(tmp_path, "evaluation")["steps"].tolist() == [15]


def test_a_metric_that_is_not_finite(tmp_path):
    class Exploding(Regression):
        def step_fn(self, batch):
            metrics = super().step_fn(batch)
            return metrics | {"norm": tf.where(self.optimizer.step >= 24, np.nan, 1.0)}

    _, training = make(Exploding, tmp_path)
    with pytest.raises(
        errors.Diverged, match=r"got norm = nan at step 24; .* checkpoint is of step 15"
    ):
        training.run()
    assert Checkpointer(tmp_path / "checkpoints").latest().step == 15


def test_a_variable_that_is_not_finite(tmp_path):
    class Spoiled(Regression):
        def step_fn(self, batch):
            metrics = super().step_fn(batch)
            is_last = tf.equal(self.optimizer.step, 10)  # No figure shows it.
            self.optimizer.v[0].assign_add([0.0, tf.where(is_last, np.inf, 0.0), 0.0])
            return metrics

    match = r"variable 'optimizer/optimizer/v/0' after step 10; .*no check"
    with pytest.raises(errors.Diverged, match=match):
        make(Spoiled, tmp_path, steps=10)[1].run()
    assert Checkpointer(tmp_path / "best").is_empty


def test_skipped_steps_are_reported(tmp_path, caplog):
    learner, training = make(Overflowing, tmp_path)
    training.run()
    assert (int(learner.optimizer.num_skipped), int(learner.optimizer.step)) == (2, 38)
    assert "skipped 1 steps whose gradients were not finite (2 in all)" in caplog.text


def test_a_run_that_was_killed_before_its_first_checkpoint_has_each_row_once(tmp_path):
    _, training = make(Regression, tmp_path)
    training._train_until(10)
    training._reports.add_evaluation(10, {"error": 1.0}, "error")
    assert read_metrics(tmp_path, "train")["steps"].size == 10
    _, training = make(Regression, tmp_path)  # What a kill leaves: rows, but no checkpoint.
    assert training.step == 0
    assert training.run() is None
    assert read_metrics(tmp_path, "train")["steps"].tolist() == list(range(1, 41))
    assert read_metrics(tmp_path, "evaluation")["steps"].tolist() == [15, 30, 40]


def test_rows_are_those_of_an_uninterrupted_run(tmp_path):
    """Also if a call is interrupted between its steps."""
    _, training = make(Regression, tmp_path / "whole", seconds=1e-6)
    training.run()
    saved = Checkpointer(tmp_path / "whole" / "checkpoints").latest().path.name
    assert int(saved[:6]) > 3  # By the clock, besides those after the three evaluations.
    learner, training = make(Stalling, tmp_path / "parts", steps_per_call=3)
    assert training.run() == signal.SIGINT
    learner.goes_on.set()
    assert training.step in (13, 14)  # Within the call from step 12 to 15.
    make(Regression, tmp_path / "parts")[1].run()
    whole, parts = (read_metrics(tmp_path / name, "train") for name in ("whole", "parts"))
    assert whole.pop("wall_time").size == parts.pop("wall_time").size == 40
    for name, column in whole.items():
        np.testing.assert_array_equal(parts[name], column, name)


def test_an_error_of_the_listener_loses_nothing(tmp_path):
    class Failing(RunListener):
        def evaluated(self, figures):
            raise KeyError(figures["steps"])

    replicator = rr.make("single_device")
    learner = Regression(replicator, Config())
    run = RunDirectory(tmp_path)
    training = Training(replicator, learner, run, RunOptions(steps_per_call=10), Failing())
    with pytest.raises(KeyError, match="15"):
        training.run()
    assert Checkpointer(run.checkpoints).latest().step == 15
    _, training = make(Regression, tmp_path)
    assert training.step == 15 and training.run() is None
    np.testing.assert_array_equal(read_metrics(tmp_path, "evaluation")["steps"], [15, 30, 40])


@pytest.mark.parametrize(
    ("forgets", "replicas"), [(True, "single_device"), (False, "multi_device:2")]
)
def test_a_variable_that_is_not_in_the_checkpoints(tmp_path, replicas, forgets):
    """The second phase assigns it; the first only reads another one, in a function."""

    class Two(Alternating):
        def __init__(self, replicator, config):
            super().__init__(replicator, config)
            with replicator.scope():
                self.fixed = tf.Variable(tf.ones([3]), name="fixed")
                self.steps = tf.Variable(0.0, name="generator/steps")

        def many(self, batch):
            scaled = tf.function(lambda x: x * self.fixed)(batch[0])
            return super().many((scaled, batch[1]))

        def one(self, batch):
            tf.function(lambda: self.steps.assign_add(1.0))()
            return super().one(batch)

        def trackables(self):
            return super().trackables() | ({} if forgets else {"steps": self.steps})

    if forgets:
        with pytest.raises(errors.ConfigError, match="'generator/steps:0' .* is missing; add"):
            make(Two, tmp_path, replicas)
    else:
        make(Two, tmp_path, replicas)


def test_batches_of_unknown_size_keep_their_structure(tmp_path):
    class Nested(Regression):
        def input_fn(self, context):
            return super().input_fn(context).map(lambda x, y: {"x": x})

        def step_fn(self, batch):
            assert batch["x"].shape == [12, 3]
            return super().step_fn((batch["x"], batch["x"][:, 0]))

    assert make(Nested, tmp_path, steps=1)[1].run() is None


def test_a_reference_is_computed_once(tmp_path):
    learner, training = make(Compared, tmp_path, "multi_device:2")
    assert training.run() is None
    table = read_metrics(tmp_path, "evaluation")
    assert learner.passes == 1 and len(table["steps"]) == 3
    np.testing.assert_allclose(
        table["unexplained"], table["error"] / np.mean(Y[:50] ** 2), rtol=1e-5
    )


def test_an_evaluation_that_takes_too_long(tmp_path):
    replicator = rr.make("single_device")
    learner = WaitingForReference(replicator, Config())
    options = RunOptions(evaluation_seconds=0.5)
    training = Training(replicator, learner, RunDirectory(tmp_path), options)
    match = r"within 0.5 s, .* step 15 .* let .*\.reference\.input_fn return finite data"
    with pytest.raises(errors.ConfigError, match=match):
        training.run()
    learner.is_stuck = False


def test_an_evaluation_is_interrupted_at_once_and_made_up_for(tmp_path, monkeypatch, uninterrupted):
    learner, training = make(Waiting, tmp_path)
    tick = training._reports.tick_evaluation

    def interrupt(step, seconds):
        monkeypatch.undo()  # Only once: a second signal would end the process immediately.
        os.kill(os.getpid(), signal.SIGINT)
        tick(step, seconds)

    monkeypatch.setattr(training._reports, "tick_evaluation", interrupt)
    assert training.run() == signal.SIGINT and training.step == 15
    learner.is_stuck = False
    assert "steps" not in read_metrics(tmp_path, "evaluation")
    learner, training = make(Regression, tmp_path)
    assert training.run() is None
    np.testing.assert_array_equal(read_metrics(tmp_path, "evaluation")["steps"], [15, 30, 40])
    np.testing.assert_array_equal(learner.w.numpy(), uninterrupted)
