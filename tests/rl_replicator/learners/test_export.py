"""What a learner serves, exported from its run."""

import numpy as np
import pytest
import tensorflow as tf

from rl_replicator import errors, learners
from rl_replicator.cli import main
from rl_replicator.exports import formats, standalone
from rl_replicator.learners import command
from rl_replicator.runs import metrics
from tests.rl_replicator.learners import tiny_learners
from tests.rl_replicator.learners.tiny_learners import X, Y


class Serving(tiny_learners.Regression):
    """A regression that can be exported."""

    def served(self):
        return learners.Served(
            lambda x: {"y": tf.linalg.matvec(x, self.w)}, {"x": tf.TensorSpec([None, 3])}
        )


def make_serving(replicator, config: tiny_learners.Config):
    return Serving(replicator, config)


def make_silent(replicator, config: tiny_learners.Config):
    return tiny_learners.Regression(replicator, config)


def test_a_served_function_that_names_no_outputs_is_refused():
    served = learners.Served(lambda x: x[:, 0], {"x": tf.TensorSpec([None, 3])})
    with pytest.raises(errors.ConfigError, match=r"served\(\) .* got \w*Tensor; return a dict"):
        served.outputs()


NAME = f"{__name__}:make_serving"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("learner") / "run"
    heard = []

    class Listener(command.RunListener):
        def evaluated(self, figures):
            heard.append(dict(figures))

    trainable = command.of_module(NAME)
    options = trainable.options_from({"steps": 40, "every": 15, "run_dir": str(path)})
    assert trainable.train(options, Listener()) == 0
    assert [figures["steps"] for figures in heard] == [15, 30, 40]
    return path, heard


@pytest.mark.parametrize("best", [False, True])
def test_the_exported_model_answers_as_the_learner(run_dir, tmp_path, monkeypatch, capsys, best):
    path, heard = run_dir
    out = tmp_path / "model"
    words = ["export", str(path), "--out", str(out)]
    words += ["--best", "--license", "MIT"] if best else []
    assert main.main(words) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed.startswith(f"wrote {out} as savedmodel (") and "after 40 steps" in printed
    call = tf.saved_model.load(str(out)).signatures["serving_default"]
    error = np.mean((call(x=tf.constant(X[:37]))["y"].numpy() - Y[:37]) ** 2)
    np.testing.assert_allclose(error, heard[-1]["error"], rtol=1e-5)
    card = (out / "README.md").read_text()
    assert f"| error | {heard[-1]['error']:.4f} |" in card
    assert "Inputs `x`: float32 (None, 3). Outputs `y`: float32 (None,)." in card
    assert ("| licence | MIT |" in card) == best == ("licence" in card)
    assert "| dm-sonnet |" in card and "mujoco" not in card  # It has no environment.


def test_the_numpy_model_of_a_learner_is_no_policy(run_dir, tmp_path):
    path, _ = run_dir
    formats.write(command.of_module(NAME).exported(path, False, "MIT"), "numpy", tmp_path / "model")
    model = standalone.Model(tmp_path / "model" / "model.npz")
    assert model.run(x=X[:2])["y"].shape == (2,)
    with pytest.raises(ValueError, match=r"expected a policy, got .*\['x'\]; call run\(x=\.\.\.\)"):
        model.act(X[0])


class Unmeasured(Serving):
    def evaluation(self):
        return None


def make_unmeasured(replicator, config: tiny_learners.Config):
    return Unmeasured(replicator, config)


def test_the_card_has_no_metrics_of_later_steps(tmp_path):
    """The run goes on while its newest checkpoint is exported, or was killed after it."""
    trainable = command.of_module(f"{__name__}:make_unmeasured")
    assert trainable.train(trainable.options_from({"steps": 4, "run_dir": str(tmp_path)})) == 0
    before = trainable.exported(tmp_path, False, None).card.facts
    assert before["steps"] == "4" and "loss" in before
    writer = metrics.MetricWriter(tmp_path, "steps")
    writer.write("train", 5, {"loss": 1e9, "first": 1e9})
    writer.close()
    assert trainable.exported(tmp_path, False, None).card.facts == before


def test_a_learner_that_serves_nothing_says_so(run_dir):
    silent = command.of_module(f"{__name__}:make_silent")
    with pytest.raises(errors.UsageError, match=r"expected a learner with a method served\(\)"):
        silent.exported(run_dir[0], False, "MIT")


@pytest.mark.parametrize("names", [("x", "X"), ("_x",), ("é",), ("lambda",)])
def test_names_that_a_graph_would_change_are_refused(names):
    """The model's inputs would not have the names in its card, or TensorFlow would refuse it."""
    with pytest.raises(errors.ConfigError, match=f"got {', '.join(map(repr, names))}; rename them"):
        learners.Served(lambda **given: given, dict.fromkeys(names))
