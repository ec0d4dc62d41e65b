"""FID and inception score against SciPy and by hand, and the classifiers that they use."""

import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.sngan import metrics
from tests.rl_replicator.learners import tiny_images


def statistics(x):
    return x.mean(0), np.cov(x, rowvar=False)


def of_batches(x, logits, size):
    """Sums over batches, the last of which is padded with NaN."""
    totals = {}
    for start in range(0, len(x), size):
        count = min(size, len(x) - start)
        filling = [(0, size - count), (0, 0)]
        batch = [
            np.pad(a[start : start + count], filling, constant_values=np.nan) for a in (x, logits)
        ]
        mask = tf.constant([1.0] * count + [0.0] * (size - count))
        for name, value in metrics.sums(*map(tf.constant, batch), mask).items():
            totals[name] = totals.get(name, 0) + value.numpy()
    return totals


@pytest.mark.parametrize(("count", "num_features"), [(400, 30), (20, 30)])  # Of full rank, or not.
def test_frechet_distance_is_scipys(count, num_features):
    rng = np.random.default_rng(0)
    mix = rng.normal(size=[num_features, num_features])
    x = rng.normal(size=[count, num_features]) @ mix
    y = rng.normal(size=[count, num_features]) @ mix * 1.3 + 0.5
    a, b = statistics(x), statistics(y)
    root = scipy.linalg.sqrtm(a[1] @ b[1]).real
    want = np.sum((a[0] - b[0]) ** 2) + np.trace(a[1] + b[1] - 2 * root)
    # SciPy's root of a rank-deficient product is accurate to about five digits.
    rtol = 1e-9 if count > num_features else 1e-4
    np.testing.assert_allclose(metrics.frechet_distance(a, b), want, rtol=rtol)


def test_statistics_of_sums():
    rng = np.random.default_rng(0)
    x = (rng.normal(size=[103, 8]) + 100).astype(np.float32)
    got = metrics.statistics(of_batches(x, np.zeros([103, 3], np.float32), 10))
    want = statistics(x.astype(np.float64))
    np.testing.assert_allclose(got[0], want[0], rtol=1e-12)
    np.testing.assert_allclose(got[1], want[1], atol=1e-9)


def test_inception_score():
    x = np.zeros([40, 1], np.float32)
    sure = np.float32(1000 * np.eye(4))[np.arange(40) % 4]
    assert metrics.inception_score(of_batches(x, sure, 7)) == pytest.approx(4)
    assert metrics.inception_score(of_batches(x, sure[:1].repeat(40, 0), 7)) == pytest.approx(1)
    p = np.array([[0.5, 0.5], [0.9, 0.1]])
    q = p.mean(0)
    want = np.exp(np.mean(np.sum(p * np.log(p / q), axis=1)))
    got = metrics.inception_score(of_batches(x[:2], np.log(p).astype(np.float32), 2))
    assert got == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_inception_from_a_file(tmp_path, channels):
    path = tiny_images.inception(tmp_path)
    suffix, classify = metrics.load(path, rr.make("single_device"), (8, 8, channels))
    assert suffix == ""
    images = tf.constant(np.random.default_rng(0).uniform(0, 255, [5, 8, 8, channels]), tf.float32)
    got, logits = tf.function(classify)(images)
    want = np.broadcast_to(images.numpy().mean((1, 2)) / 128 - 1, [5, 3])
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(logits, want[:, :2] * [1, 2], atol=1e-5)


def test_what_is_no_classifier(tmp_path):
    replicator = rr.make("single_device")
    with pytest.raises(rr.UsageError, match="--features: expected a run directory .* or Inception"):
        metrics.load(tmp_path / "inception.pb", replicator, (32, 32, 3))
    (tmp_path / "inception.pb").write_bytes(b"not a graph")
    other = tf.Graph().as_graph_def().SerializeToString()
    for content in (b"not a graph", other):
        (tmp_path / "inception.pb").write_bytes(content)
        with pytest.raises(rr.UsageError, match="expected Inception's .* another kind of file"):
            metrics.load(tmp_path / "inception.pb", replicator, (32, 32, 3))
    with pytest.raises(rr.UsageError, match="expected the directory of a run"):
        metrics.load(tmp_path, replicator, (32, 32, 3))
