"""The loop: where it stops and goes on, what it keeps, what it refuses."""

import dataclasses
import os
import re
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
    Exploding,
    Finite,
    Headstrong,
    Noisy,
    NoisyEvaluation,
    Overflowing,
    Regression,
    Stalling,
    Varying,
    Waiting,
    WaitingForReference,
    X,
    Y,
)

pytestmark = pytest.mark.usefixtures("plain_graphs")


def make(kind, path, replicas="single_device", steps_per_call=5, seconds=1000.0, **settings):
    replicator = rr.make(replicas)
    learner = kind(replicator, dataclasses.replace(Config(), **settings))
    return learner, Training(
        replicator,
        learner,
        RunDirectory(path),
        RunOptions(steps_per_call=steps_per_call, checkpoint_seconds=seconds),
    )


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


@pytest.mark.parametrize("replicas", ["single_device", "multi_device:2"])
def test_a_whole_run(tmp_path, replicas, uninterrupted):
    learner, training = make(Regression, tmp_path, replicas, steps_per_call=10)
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


@pytest.mark.parametrize(
    ("steps_per_call", "replicas", "tolerance"),
    [(1, "single_device", 0), (4, "multi_device:2", 1e-5)],
)
def test_interrupted_and_resumed(tmp_path, steps_per_call, replicas, tolerance, uninterrupted):
    _, training = make(interrupted(Regression), tmp_path, steps_per_call=steps_per_call)
    assert training.run() == signal.SIGINT
    stopped = training.step
    assert 0 < stopped < 40
    learner, training = make(Regression, tmp_path, replicas)
    assert training.step == stopped
    assert training.run() is None
    np.testing.assert_allclose(learner.w.numpy(), uninterrupted, rtol=tolerance)
    steps = read_metrics(tmp_path, "train")["steps"]
    assert (np.diff(steps) > 0).all()


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


def test_checkpoints_by_the_clock(tmp_path):
    _, training = make(Regression, tmp_path, seconds=1e-6)
    training._saved_at = time.monotonic()
    training.run()
    # Besides those after the three evaluations.
    assert int(Checkpointer(tmp_path / "checkpoints").latest().path.name[:6]) > 3


def test_phases_in_their_order(tmp_path):
    learner, training = make(Alternating, tmp_path, steps=5)
    assert training.run() is None
    assert f"{learner.log.numpy():020b}" == "0001" * 5
    table = read_metrics(tmp_path, "train")
    assert set(table) == {"steps", "wall_time", "many_loss", "one_log"}
    assert training.step == 5


def test_interrupted_between_phases(tmp_path):
    _, training = make(interrupted(Alternating), tmp_path, steps=8, steps_per_call=1)
    assert training.run() == signal.SIGINT
    learner, training = make(Alternating, tmp_path, steps=8)
    training.run()
    assert f"{learner.log.numpy():032b}" == "0001" * 8


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

    name = "score"
    scores = {5: 0.5, 10: 0.9, 15: 0.3, 20: 0.2}

    def evaluation(self):
        def metrics_fn(sums):
            return {self.name: self.scores[int(self.optimizer.step)], "examples": 37.0}

        return dataclasses.replace(super().evaluation(), metrics_fn=metrics_fn)


def test_a_best_checkpoint_is_kept_whose_later_steps_were_lost(tmp_path, monkeypatch):
    """The run was killed after the best checkpoint was saved, and before the next one was."""
    make(Judged, tmp_path, steps=10, every=5, best="score")[1].run()
    shutil.rmtree(Checkpointer(tmp_path / "checkpoints").latest().path)
    monkeypatch.setattr(Judged, "scores", {10: 0.4, 15: 0.5, 20: 0.2})
    make(Judged, tmp_path, steps=20, every=5, best="score")[1].run()
    assert Checkpointer(tmp_path / "best").latest().step == 10
    assert read_metrics(tmp_path, "evaluation")["score"].tolist() == [0.5, 0.4, 0.5, 0.2]


@pytest.mark.parametrize(
    ("before", "now", "best"),
    [
        ("score", "score", 10),
        ("score", "-score", 20),  # 0.9 at step 10, then 0.3 and 0.2.
        ("examples", "examples", 20),  # The newest of equal ones.
    ],
)
def test_the_best_checkpoint_of_a_continued_run(tmp_path, before, now, best):
    make(Judged, tmp_path, steps=10, every=5, best=before)[1].run()
    make(Judged, tmp_path, steps=20, every=5, best=now)[1].run()
    assert Checkpointer(tmp_path / "best").latest().step == best


def test_without_a_best_checkpoint_the_next_evaluation_is_the_best(tmp_path, caplog):
    make(Judged, tmp_path, steps=10, every=5, best="score")[1].run()
    (Checkpointer(tmp_path / "best").latest().path / "manifest.json").write_text("?")
    make(Judged, tmp_path, steps=20, every=5, best="score")[1].run()
    assert Checkpointer(tmp_path / "best").latest().step == 15
    assert "counts as the best one so far" in caplog.text


def test_wrong_names_are_found_before_the_first_step(tmp_path):
    class Misspelt(Regression):
        def evaluation(self):
            return dataclasses.replace(
                super().evaluation(), metrics_fn=lambda sums: {"error": sums["eror"]}
            )

    with pytest.raises(errors.ConfigError, match="one of error, examples, got 'accuracy'"):
        make(Regression, tmp_path, best="accuracy")
    match = r"the sums that sums_fn returns \(error, examples\), got 'eror'; correct"
    with pytest.raises(errors.ConfigError, match=match):
        make(Misspelt, tmp_path)


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


def test_data_that_ends(tmp_path):
    _, training = make(Finite, tmp_path, steps_per_call=10, steps=10)
    with pytest.raises(errors.ConfigError, match="for 10 steps, but it ended after 5; repeat"):
        training.run()
    assert training.step == 5 and Checkpointer(tmp_path / "checkpoints").is_empty


def test_data_without_a_whole_batch(tmp_path):
    class Short(Regression):
        def input_fn(self, context):
            data = tf.data.Dataset.from_tensor_slices((X[:7], Y[:7]))
            return data.batch(12, drop_remainder=True).repeat()

    with pytest.raises(errors.ConfigError, match="ended after 0; a whole batch is missing: repeat"):
        make(Short, tmp_path)[1].run()


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
    learner, training = make(Stalling, tmp_path / "parts", steps_per_call=3)
    assert training.run() == signal.SIGINT
    learner.goes_on.set()
    assert training.step in (13, 14)  # Within the call from step 12 to 15.
    make(Regression, tmp_path / "parts")[1].run()
    whole, parts = (read_metrics(tmp_path / name, "train") for name in ("whole", "parts"))
    assert whole.pop("wall_time").size == parts.pop("wall_time").size == 40
    for name, column in whole.items():
        np.testing.assert_array_equal(parts[name], column, name)


@pytest.mark.parametrize("kind", [Noisy, NoisyEvaluation])
def test_random_numbers_that_a_resumed_run_draws_anew(tmp_path, kind):
    replicator = rr.make("single_device")
    settings = RunOptions(steps_per_call=10, deterministic=True)
    match = (
        "expected steps and evaluations whose random numbers a resumed run can draw again, found "
        r"RandomStandardNormal \(.*\); use tf.random.stateless_\*"
    )
    with pytest.raises(errors.ConfigError, match=match):
        Training(replicator, kind(replicator, Config()), RunDirectory(tmp_path), settings)


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


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Headstrong, r"batches of 6 examples \(2 replicas share the global batch\), got 7; batch "),
        (Varying, r"batches of 6 examples .*, got another number; batch the data with"),
    ],
)
def test_an_input_fn_that_ignores_the_batch_size(tmp_path, kind, message):
    with pytest.raises(errors.ConfigError, match=message) as error:
        make(kind, tmp_path, "multi_device:2")[1].run()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("nest", [lambda x: (x,), lambda x: {"x": x}])
def test_batches_of_unknown_size_keep_their_structure(tmp_path, nest):
    class Nested(Regression):
        def input_fn(self, context):
            return super().input_fn(context).map(lambda x, y: nest(x))

        def step_fn(self, batch):
            (x,) = tf.nest.flatten(batch)
            assert tf.nest.map_structure(lambda one: one.shape, batch) == nest(
                tf.TensorShape([12, 3])
            )
            return super().step_fn((x, x[:, 0]))

    assert make(Nested, tmp_path, steps=1)[1].run() is None


@pytest.mark.parametrize("every", [0, 20.0])
def test_an_evaluation_after_no_whole_number_of_steps_is_refused(every):
    learner = Regression(rr.make("single_device"), Config(every=every))
    with pytest.raises(errors.ConfigError, match=f"whole number of at least 1, got {every}; round"):
        learner.evaluation()


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


@pytest.mark.parametrize(
    ("metrics", "got"),
    [
        (lambda loss: {"errors": tf.stack([loss, loss])}, r"errors: float32 \[2\]; return"),
        (lambda loss: {"loss": loss, "aux": {"a": loss}}, r"loss: float32 \[\], aux: a: float32"),
        (lambda loss: {"loss": tf.constant("low")}, r"loss: string \[\]"),
    ],
    ids=["vector", "nested", "string"],
)
def test_metrics_that_are_no_numbers(tmp_path, monkeypatch, metrics, got):
    step_fn = Regression.step_fn
    changed = lambda self, batch: metrics(step_fn(self, batch)["loss"])  # noqa: E731
    monkeypatch.setattr(Regression, "step_fn", changed)
    with pytest.raises(errors.ConfigError, match=f"real scalars by name, .*, got {got}"):
        make(Regression, tmp_path)


@pytest.mark.parametrize("found", [None, {"error": "good"}])
def test_figures_that_are_no_numbers(tmp_path, found):
    class Odd(Regression):
        def evaluation(self):
            return dataclasses.replace(super().evaluation(), metrics_fn=lambda sums: found)

    match = f"metrics_fn to return numbers by name.* got {re.escape(repr(found))};"
    with pytest.raises(errors.ConfigError, match=match):
        make(Odd, tmp_path)
