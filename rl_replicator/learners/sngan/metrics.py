"""The quality of generated images: Frechet inception distance and inception score.

Both are computed from a classifier's features and logits. Replicas compute sums over their images,
and the figures are computed from the sums of all replicas. So every image counts once, whatever the
number of replicas.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Statistics of the features of a set of images.

    Attributes:
      mean: [F] float64.
      covariance: sample covariance, with N - 1 in the denominator, [F, F] float64.
    """

    mean: np.ndarray
    covariance: np.ndarray


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
    covariance = (sums["products"] - count * np.outer(mean, mean)) / (count - 1)
    return Statistics(mean, covariance)


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
    difference = a.mean - b.mean
    product = _root(a.covariance) @ _root(b.covariance)
    traces = np.trace(a.covariance) + np.trace(b.covariance)
    overlap = np.linalg.svd(product, compute_uv=False).sum()
    return float(max(difference @ difference + traces - 2.0 * overlap, 0.0))


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
