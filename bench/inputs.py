"""Supervised input: datasets as the replicator reads them, with and without tf.data's autotuning.

    python -m bench.inputs

The dataset decodes JPEG files of 320 x 240 from memory and resizes them, with
`num_parallel_calls=AUTOTUNE` and `prefetch(AUTOTUNE)`, in batches of 32. Unless a dataset's own
options enable autotuning, the replicator reads it without, and AUTOTUNE means the number of cores.
"plain" is a `tf.function` on the dataset's own iterator, which autotunes. Each is read alone, and
beside a step whose matrix product takes about as long as a batch. Each side has its own process:
in one process, datasets that fill their buffers would disturb the measured one.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from bench import harness, processes

BATCH, STEPS, FILES = 32, 24, 64
# Steps that empty the buffers, which fill while other sides are measured.
EMPTYING_STEPS = 12
WIDTH = 1024
PLAIN = "plain tf.function, autotuning"


def files() -> list[bytes]:
    """Returns encoded images with fine structure."""
    random = np.random.default_rng(0)
    images = []
    for _ in range(FILES):
        noise = tf.image.resize(random.uniform(0, 255, [60, 80, 3]), [240, 320])
        images.append(tf.io.encode_jpeg(tf.cast(noise, tf.uint8)).numpy())
    return images


def decode(file: tf.Tensor) -> tf.Tensor:
    """Returns a decoded image, preprocessed as for a classifier."""
    image = tf.image.random_flip_left_right(tf.io.decode_jpeg(file, channels=3))
    return tf.image.resize(image, [128, 128]) / 255.0


def make_dataset(images: list[bytes], calls: int = tf.data.AUTOTUNE) -> tf.data.Dataset:
    """Returns an endless dataset of batches.

    Args:
      images: encoded images.
      calls: number of images that are decoded in parallel.
    """
    dataset = tf.data.Dataset.from_tensor_slices(images).repeat().shuffle(FILES)
    dataset = dataset.map(decode, num_parallel_calls=calls)
    return dataset.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def autotuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with an option that asks for autotuning."""
    options = tf.data.Options()
    options.autotune.enabled = True
    return dataset.with_options(options)


def make_step(has_work: bool):
    """Returns a step: the mean of a batch, and a matrix product if it has work."""
    weights = tf.Variable(tf.random.normal([WIDTH, WIDTH]))

    def step_fn(images: tf.Tensor) -> tf.Tensor:
        result = tf.reduce_mean(images)
        if has_work:
            x = tf.fill([WIDTH, WIDTH], result)
            result += tf.reduce_mean(tf.matmul(x, weights))
        return result

    return step_fn


def ours(dataset: tf.data.Dataset, has_work: bool):
    """Returns the replicated step."""
    replicator = rr.make("single_device")
    with replicator.scope():
        step_fn = make_step(has_work)
    return replicator.replicate(step_fn, replicator.make_inputs(lambda context: dataset))


def plain(dataset: tf.data.Dataset, has_work: bool):
    """Returns the same in plain TensorFlow."""
    iterator, step_fn = iter(dataset), make_step(has_work)
    return tf.function(lambda: step_fn(next(iterator)), autograph=False)


SIDES: dict[str, Callable[[bool], Callable[[], object]]] = {
    PLAIN: lambda has_work: plain(make_dataset(files()), has_work),
    "replicator": lambda has_work: ours(make_dataset(files()), has_work),
    "replicator, autotuning": lambda has_work: ours(autotuned(make_dataset(files())), has_work),
    "replicator, 2 calls": lambda has_work: ours(make_dataset(files(), 2), has_work),
}


def side(step: Callable[[], object]) -> harness.Side:
    """Returns a side that empties the buffers first."""
    emptying = harness.repeated(step, EMPTYING_STEPS)
    timed = harness.clocked(harness.repeated(step, STEPS), STEPS * BATCH, "images")

    def sample() -> Mapping[harness.Unit, float]:
        emptying()
        return timed()

    return sample


def main() -> None:
    """Measures all sides, alone and beside work, or serves one in this process."""
    parser = harness.parser("inputs", __doc__)
    parser.add_argument("--side", choices=list(SIDES), help="be the process of this side")
    parser.add_argument("--work", action="store_true", help="with a matrix product in the step")
    options = parser.parse_args()
    if options.side is not None:
        processes.serve(side(SIDES[options.side](options.work)))
        return
    report = harness.Report("inputs", options)
    for flags, suffix in (([], ""), (["--work"], ", beside a step")):
        commands = {name + suffix: [["bench.inputs", "--side", name, *flags]] for name in SIDES}
        peer = PLAIN + suffix
        with processes.groups(commands) as sides:
            # The warm-up rounds let the tuner settle.
            samples = harness.measure(sides, options.rounds, warm_up=2)
            report.add(samples, {name: peer for name in sides if name != peer})
    report.write()


if __name__ == "__main__":
    main()
