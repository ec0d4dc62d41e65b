"""The classifiers whose features and logits FID and inception score use."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackableSubset
from rl_replicator.learners.resnet import data
from rl_replicator.learners.resnet.classifier import Classifier
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.replicator import Replicator
from rl_replicator.runs.plain_data import from_plain, stored_part
from rl_replicator.runs.run_directory import RunDirectory

# Maps images, [B, H, W, C] float32, 0 to 255, to features, [B, F], and logits, [B, K].
Classify = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

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
            f"--features: expected a run of 'rl-replicator train resnet', found one of "
            f"{trainable} in {path}; name another"
        )
    checkpointer = Checkpointer(run.best)
    if checkpointer.latest() is None:
        raise errors.ConfigError(
            f"--features: expected an evaluated checkpoint in {run.best}, found none; train for "
            "longer"
        )
    config = from_plain(ResNetConfig, stored_part(identity, "config", Mapping)).resolved()
    images = data.load(config)
    if images.image_shape != image_shape:
        raise errors.ConfigError(
            f"--features: expected a classifier of {_size(image_shape)} images, found one of "
            f"{_size(images.image_shape)} images in {path}; train one on the same data"
        )
    with replicator.scope():
        classifier = Classifier(config, images)
    # A subset, because the checkpoint holds the optimizer too.
    checkpointer.restore({"learner": TrackableSubset(network=classifier.network)})
    return classifier.classify


def _inception(path: Path) -> Classify:
    """Loads the Inception network (arXiv:1512.00567) with which published figures are computed.

    The file is a graph that resizes images to 299x299 and scales them. The weights are constants.
    """
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
        graph_def, weights_name = _without_last_layer(graph_def)
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
            return_elements=[_INCEPTION_FEATURES, weights_name],
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


def _without_last_layer(graph_def: Any) -> tuple[Any, str]:
    """Removes the last layer, because the one in the graph accepts only one image at a time.

    Returns:
      The graph of the features and of the last layer's weights, and the name of those weights.
    """
    inputs = {node.name: node.input for node in graph_def.node}
    weights = inputs[_INCEPTION_LOGITS][1]
    wanted = [name.partition(":")[0] for name in (_INCEPTION_FEATURES, weights)]
    part = tf.compat.v1.graph_util.extract_sub_graph(graph_def, wanted)
    return part, f"{wanted[1]}:0"


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
