"""What generator and discriminator minimise."""

import tensorflow as tf


def discriminator_hinge(real: tf.Tensor, fake: tf.Tensor) -> tf.Tensor:
    """`max(0, 1 - D(x)) + max(0, 1 + D(G(z)))`: Miyato et al. 2018, equation 16.

    Args:
      real: [B] scores of images of the data set.
      fake: [B] scores of generated images.

    Returns:
      [B] losses.
    """
    return tf.nn.relu(1.0 - real) + tf.nn.relu(1.0 + fake)


def generator_hinge(fake: tf.Tensor) -> tf.Tensor:
    """`-D(G(z))`: Miyato et al. 2018, equation 17; [B] -> [B]."""
    return -fake
