"""The classifier: a ResNet and the scaling of its input."""

from typing import Any

import tensorflow as tf

from rl_replicator.layers import precision
from rl_replicator.learners.resnet import networks
from rl_replicator.learners.resnet.data import Images
from rl_replicator.learners.resnet.normalization import BatchNorm, cross_replica_batch_norm

_STEMS = {"imagenet": networks.ImageNetStem, "small": networks.SmallImageStem}


class Classifier:
    """Maps the images of a data set to features and logits.

    Attributes:
      network: the network, which holds all variables.
      dtype: dtype in which the layers compute.
    """

    def __init__(self, config: Any, images: Images):
        """Creates the variables; call it in the scope of a replicator.

        Args:
          config: a resolved config.
          images: the data set, whose channel statistics scale the input.
        """
        self.dtype = precision.choose(config.precision)
        self._images = images
        self.network = networks.ResNet(
            config.depth,
            images.num_classes,
            _STEMS[config.stem],
            cross_replica_batch_norm if config.cross_replica_norm else BatchNorm,
            config.width,
        )
        self.network(tf.zeros([1, *images.image_shape], self.dtype), is_training=False)

    def __call__(self, images: tf.Tensor, is_training: bool) -> tf.Tensor:
        """Returns the logits, [B, K] float32. See `classify`."""
        return self.classify(images, is_training)[1]

    def classify(
        self, images: tf.Tensor, is_training: bool = False, dtype: tf.DType | None = None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes features and logits.

        Args:
          images: [B, H, W, C] of any numeric dtype, 0 to 255, of the data set's shape.
          is_training: whether batch norm uses the statistics of the batch.
          dtype: dtype in which the layers compute; None for that of training.

        Returns:
          Features, [B, F] float32, and logits, [B, K] float32.
        """
        scaled = (tf.cast(images, tf.float32) - self._images.mean) / self._images.deviation
        return self.network.classify(tf.cast(scaled, dtype or self.dtype), is_training)
