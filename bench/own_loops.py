"""A learner beside the loop of the program that it came from: the same steps in plain TensorFlow.

    python -m bench.own_loops docs/examples/keras_learner.py

The module has a `make_learner`, as for `rl-replicator train`. If it also has the `model_fn` and
`data_fn` of `from_keras`, its own loop is the model's `fit`; otherwise a `tf.function` of the
learner's step with unwrapped optimizers, under Sonnet's Replicator on two devices. A step that does
not reduce its gradients itself has no such loop on two devices: leave out that side by --sides.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from bench import harness, processes
from bench.supervised import fitted
from rl_replicator.learners.contract import annotation
from rl_replicator.learners.run_options import RunOptions
from rl_replicator.learners.steps import Steps
from rl_replicator.step.inputs.contract import InputContext

ONE, TWO, OWN, MIRRORED = "one device", "two devices", "own loop", "own loop, two devices"
DEVICES = {ONE: 1, TWO: 2, OWN: 1, MIRRORED: 2}


class Plain:
    """What the constructor of a learner uses of a replicator, from a strategy of TensorFlow."""

    def __init__(self, strategy: Any):
        """Makes it."""
        self.scope, self.num_replicas = strategy.scope, strategy.num_replicas_in_sync

    def wrap_optimizer(self, optimizer: Any, **_: Any) -> Any:
        """Returns the optimizer itself."""
        return optimizer


def ours(module: Any, devices: int, steps: int) -> harness.Side:
    """Returns a side: calls of compiled steps, as `train` makes them."""
    replicator = rr.make(f"multi_device:{devices}" if devices > 1 else "single_device")
    learner = module.make_learner(replicator, annotation(module.make_learner, "config")())
    compiled = Steps(replicator, learner, 0, RunOptions().steps_per_call)

    def work() -> None:
        batch = compiled.batches
        end = batch + steps * compiled.batches_per_step
        while batch < end:
            call = compiled.begin(batch, end)
            call.future.result()
            batch += call.count

    return harness.clocked(work, steps, "steps")


def stepped(module: Any, devices: int, steps: int) -> harness.Side:
    """Returns a side: a compiled step of the learner, called once for each batch."""
    strategy = tf.distribute.get_strategy()
    if devices > 1:
        names = [f"CPU:{i}" for i in range(devices)]
        strategy = snt.distribute.Replicator(names, tf.distribute.ReductionToOneDevice("CPU:0"))
    learner = module.make_learner(Plain(strategy), annotation(module.make_learner, "config")())
    data = strategy.distribute_datasets_from_function(
        lambda _: learner.input_fn(InputContext(devices)).prefetch(tf.data.AUTOTUNE)
    )
    batches = iter(data)
    step = tf.function(lambda batch: strategy.run(learner.step_fn, (batch,)))
    return harness.clocked(harness.repeated(lambda: step(next(batches)), steps), steps, "steps")


def fit(module: Any, devices: int, steps: int) -> harness.Side:
    """Returns a side: Keras' `fit`, under MirroredStrategy on several devices."""
    config = annotation(module.model_fn)()
    strategy = tf.distribute.get_strategy()
    if devices > 1:
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    with strategy.scope():
        model = module.model_fn(config)
    data = module.data_fn(config).repeat().batch(config.global_batch_size, drop_remainder=True)
    return fitted(model, data.prefetch(tf.data.AUTOTUNE), steps, 1, "steps")


def main() -> None:
    """Measures the sides in turn, or serves one in this process."""
    parser = harness.parser("own_loops", __doc__)
    parser.add_argument("module", type=Path, help="file with make_learner")
    parser.add_argument("--steps", type=int, default=20, help="steps of a sample")
    parser.add_argument("--sides", nargs="+", choices=list(DEVICES), default=list(DEVICES))
    parser.add_argument("--side", choices=list(DEVICES), help="be the process of this side")
    options = parser.parse_args()
    file = options.module.absolute()
    if options.side is not None:
        sys.path.insert(0, str(file.parent))
        rr.split_cpu(2)
        module = importlib.import_module(file.stem)
        own = fit if hasattr(module, "model_fn") else stepped
        side = ours if options.side in (ONE, TWO) else own
        processes.serve(side(module, DEVICES[options.side], options.steps))
        return
    report = harness.Report("own_loops", options)
    words = ["bench.own_loops", str(file), "--steps", str(options.steps), "--side"]
    with processes.groups({side: [[*words, side]] for side in options.sides}) as sides:
        report.add(harness.measure(sides, options.rounds), {ONE: OWN, TWO: MIRRORED})
    report.write()


if __name__ == "__main__":
    main()
