"""The classifiers by whose features FID and inception score judge."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from rl_replicator import errors
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import TrackableSubset
from rl_replicator.learners.resnet.config import ResNetConfig
from rl_replicator.learners.resnet.learner import ResNetLearner
from rl_replicator.replicator import Replicator
from rl_replicator.runs.run_directory import RunDirectory, from_plain

# [B, H, W, C] float32 images, 0 to 255 -> [B, F] features, [B, K] logits.
Classify = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

_INCEPTION_INPUT = "ExpandDims:0"
_INCEPTION_FEATURES = "pool_3:0"
_INCEPTION_LOGITS = "softmax/logits/MatMul"


def load(path: Path, replicator: Replicator, image_shape: tuple[int, ...]) -> tuple[str, Classify]:
    """A classifier from a run directory or a file.

    Args:
      path: a run of `rl-replicator train resnet`, or `classify_image_graph_def.pb`.
      replicator: on whose replicas it is to be used.
      image_shape: height, width, channels of the images to judge.

    Returns:
      What to append to the names of figures that are made with it, and the classifier.

    Raises:
      UsageError: nothing of the kind is there, or it takes other images.
    """
    if path.is_dir():
        return "_own_classifier", _of_run(path, replicator, image_shape)
    if not path.is_file():
        raise errors.ConfigError(
            f"--features: expected a run directory of 'rl-replicator train resnet', or Inception's "
            f"classify_image_graph_def.pb, found nothing at {path}; train one, or unpack the file "
            "from inception-2015-12-05.tgz"
        )
    return "", _inception(path)


def _of_run(path: Path, replicator: Replicator, image_shape: tuple[int, ...]) -> Classify:
    """The best network of a run; it looks at images of its own data set."""
    run = RunDirectory(path)
    identity = run.config()["identity"]
    if identity["trainable"] != "resnet":
        raise errors.ConfigError(
            f"--features: expected a run of 'rl-replicator train resnet', found one of "
            f"{identity['trainable']} in {path}; name another"
        )
    learner = ResNetLearner(replicator, from_plain(ResNetConfig, identity["config"]))
    if learner.image_shape != image_shape:
        raise errors.ConfigError(
            f"--features: expected a classifier of {_size(image_shape)} images, found one of "
            f"{_size(learner.image_shape)} images in {path}; train one on the same data"
        )
    checkpoint = Checkpointer(run.best)
    if checkpoint.latest() is None:
        raise errors.ConfigError(
            f"--features: expected an evaluated checkpoint in {run.best}, found none; train longer"
        )
    # The network alone: the optimizer's slots are not needed to classify.
    network = learner.trackables()["network"]
    checkpoint.restore({"learner": TrackableSubset(network=network)})
    return learner.classify


def _inception(path: Path) -> Classify:
    """The network of Szegedy et al. 2015 (arXiv:1512.00567) that published figures were made with.

    Its graph brings images to 299x299 and scales them itself. The weights are constants in it.
    """
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
        graph_def, weights_name = _without_last_layer(graph_def)
    except Exception as error:  # Protobuf's own class is not public.
        raise errors.ConfigError(
            f"--features: expected Inception's classify_image_graph_def.pb in {path}, got another "
            f"kind of file ({type(error).__name__}: {error}); unpack that from "
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
    """What leads to the features and the weights of the last layer, and the weights' name.

    That layer itself takes but one image at a time.
    """
    inputs = {node.name: node.input for node in graph_def.node}
    weights = inputs[_INCEPTION_LOGITS][1]
    wanted = [name.partition(":")[0] for name in (_INCEPTION_FEATURES, weights)]
    part = tf.compat.v1.graph_util.extract_sub_graph(graph_def, wanted)
    return part, f"{wanted[1]}:0"


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
