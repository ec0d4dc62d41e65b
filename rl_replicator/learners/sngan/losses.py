"""The hinge losses of discriminator and generator: Miyato et al. 2018 (arXiv:1802.05957)."""

import tensorflow as tf


def discriminator_hinge(real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
    """Computes `max(0, 1 - D(x)) + max(0, 1 + D(G(z)))`, equation 16.

    Args:
      real: scores of real images, [B].
      fake: scores of generated images, [B].

    Returns:
      Losses, [B].
    """
    return tf.nn.relu(1.0 - real) + tf.nn.relu(1.0 + fake)


def generator_hinge(fake: tf.Tensor) -> tf.Tensor:
    """Computes `-D(G(z))`, equation 17.

    Args:
      fake: scores of generated images, [B].

    Returns:
      Losses, [B].
    """
    return -fake
