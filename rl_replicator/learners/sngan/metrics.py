"""The quality of generated images: Frechet inception distance and inception score.

Both are computed from a classifier's features and logits. Replicas compute sums over their images,
and the figures are computed from the sums of all replicas. So every image counts once, whatever the
number of replicas.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from rl_replicator import errors
from rl_replicator.checkpoints.parts import TrackableSubset
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.learners.resnet.learner import Classifier
from rl_replicator.replicator import Replicator
from rl_replicator.runs.plain_data import from_plain, stored_part
from rl_replicator.runs.run_directory import RunDirectory

# Maps images, [B, H, W, C] float32, 0 to 255, to features, [B, F], and logits, [B, K].
Classify = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]
# Mean, [F] float64, and sample covariance, [F, F] float64, of the features of a set of images.
Statistics = tuple[np.ndarray, np.ndarray]

_INCEPTION_INPUT = "ExpandDims:0"
_INCEPTION_FEATURES = "pool_3:0"
_INCEPTION_LOGITS = "softmax/logits/MatMul"


def load(path: Path, replicator: Replicator, image_shape: tuple[int, ...]) -> tuple[str, Classify]:
    """Loads a classifier from a run directory or a file.

    Args:
      path: run directory of `rl-replicator train resnet`, or `classify_image_graph_def.pb`.
      replicator: replicator whose replicas will call the classifier.
      image_shape: height, width, channels of the images to classify.

    Returns:
      A suffix for the names of figures that are computed with the classifier, and the classifier.

    Raises:
      UsageError: if there is no classifier at the path, or it takes images of another shape.
    """
    if path.is_dir():
        return "_own_classifier", _of_run(path, replicator, image_shape)
    if not path.is_file():
        raise errors.ConfigError(
            f"--features: expected a run directory of 'rl-replicator train resnet', or Inception's "
            f"classify_image_graph_def.pb, found nothing at {path}; train a classifier, or unpack "
            "the file from inception-2015-12-05.tgz"
        )
    return "", _inception(path)


def _of_run(path: Path, replicator: Replicator, image_shape: tuple[int, ...]) -> Classify:
    """Restores the best classifier of a run."""
    run = RunDirectory(path)
    identity = run.config()["identity"]
    trainable = stored_part(identity, "trainable", str)
    if trainable != "resnet":
        raise errors.ConfigError(
            f"--features: expected a run of 'rl-replicator train resnet', found one of {trainable} "
            f"in {path}; name another"
        )
    checkpointer = run.checkpointer(best=True)
    config = from_plain(ResNetConfig, stored_part(identity, "config", Mapping)).resolved()
    with replicator.scope():
        classifier = Classifier(config)
    if classifier.images.image_shape != image_shape:
        raise errors.ConfigError(
            f"--features: expected a classifier of images {list(image_shape)}, found one of images "
            f"{list(classifier.images.image_shape)} in {path}; train one on the same data"
        )
    # A subset, because the checkpoint holds the optimizer too.
    checkpointer.restore({"learner": TrackableSubset(network=classifier.network)})
    return classifier


def _inception(path: Path) -> Classify:
    """Loads the Inception network (arXiv:1512.00567) with which published figures are computed.

    The file is a graph that resizes images to 299x299 and scales them. The weights are constants.
    Its last layer is replaced, because the one in the graph accepts only one image at a time.
    """
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
        inputs = {node.name: node.input for node in graph_def.node}
        weights_name = inputs[_INCEPTION_LOGITS][1].partition(":")[0]
        wanted = [_INCEPTION_FEATURES.partition(":")[0], weights_name]
        graph_def = tf.compat.v1.graph_util.extract_sub_graph(graph_def, wanted)
    except Exception as error:  # Protobuf's own class is not public.
        raise errors.ConfigError(
            f"--features: expected Inception's classify_image_graph_def.pb in {path}, got another "
            f"kind of file ({type(error).__name__}: {error}); unpack it from "
            "inception-2015-12-05.tgz"
        ) from None

    def run(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pool, weights = tf.graph_util.import_graph_def(
            graph_def,
            input_map={_INCEPTION_INPUT: images},
            return_elements=[_INCEPTION_FEATURES, f"{weights_name}:0"],
            name="",
        )
        features = tf.reshape(pool, [-1, weights.shape[0]])
        return features, tf.matmul(features, weights)

    shape = [None, None, None, 3]
    function = tf.compat.v1.wrap_function(run, [tf.TensorSpec(shape, tf.float32)])

    def classify(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = images if images.shape[-1] == 3 else tf.image.grayscale_to_rgb(images)
        return function(tf.cast(images, tf.float32))

    return classify


def sums(features: tf.Tensor, logits: tf.Tensor, mask: tf.Tensor) -> dict[str, tf.Tensor]:
    """Computes the sums over a batch from which the figures are computed.

    Args:
      features: [B, F].
      logits: [B, K].
      mask: [B], 1 for an image and 0 for padding, whose features and logits may be NaN.

    Returns:
      float64 sums by name: `images` [], `features` [F], `products` [F, F], `p` [K], `p_log_p` [].
    """
    is_image = mask[:, None] > 0
    features = tf.cast(tf.where(is_image, features, 0.0), tf.float64)
    log_p = tf.nn.log_softmax(tf.cast(tf.where(is_image, logits, 0.0), tf.float64))
    weight = tf.cast(mask, tf.float64)
    p = weight[:, None] * tf.exp(log_p)  # [B, K]
    return {
        "images": tf.reduce_sum(weight),
        "features": tf.reduce_sum(features, axis=0),
        "products": tf.matmul(features, features, transpose_a=True),
        "p": tf.reduce_sum(p, axis=0),
        "p_log_p": tf.reduce_sum(p * log_p),
    }


def statistics(sums: Mapping[str, np.ndarray]) -> Statistics:
    """Computes mean and covariance of the features from the sums over all images."""
    count = sums["images"]
    mean = sums["features"] / count
    return mean, (sums["products"] - count * np.outer(mean, mean)) / (count - 1)


def frechet_distance(a: Statistics, b: Statistics) -> float:
    """Computes the Frechet distance of two normal distributions.

    `|m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2))`: Heusel et al. 2017 (arXiv:1706.08500),
    equation 6. The trace of `(C_a C_b)^(1/2)` is the sum of the singular values of
    `C_a^(1/2) C_b^(1/2)`. This form needs only symmetric roots, which exist for singular
    covariances too, whereas rounding can make the eigenvalues of `C_a C_b` complex.

    Args:
      a: statistics of one set of images.
      b: statistics of the other.
    """
    (mean_a, covariance_a), (mean_b, covariance_b) = a, b
    product = _root(covariance_a) @ _root(covariance_b)
    traces = np.trace(covariance_a) + np.trace(covariance_b)
    overlap = np.linalg.svd(product, compute_uv=False).sum()
    return float(max(np.sum((mean_a - mean_b) ** 2) + traces - 2.0 * overlap, 0.0))


def inception_score(sums: Mapping[str, np.ndarray]) -> float:
    """Computes `exp(E KL(p(y|x) || p(y)))`, from 1 to the number of classes.

    Salimans et al. 2016 (arXiv:1606.03498), section 4. Computed over all images at once, not as the
    mean over ten parts.

    Args:
      sums: sums over all images; see `sums`.
    """
    p = sums["p"] / sums["images"]  # [K]
    entropy = -np.sum(p * np.log(np.maximum(p, np.finfo(p.dtype).tiny)))
    return float(np.exp(sums["p_log_p"] / sums["images"] + entropy))


def _root(covariance: np.ndarray) -> np.ndarray:
    """Returns the symmetric square root. Eigenvalues that rounding made negative count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
