"""The time of each kind of operation in a learner step, from TensorFlow's profiler.

    python -m bench.learner_profile

The sides are those of `bench.learner` with D4PG, except for 1 step a call and XLA. A figure is the
time of the operations of one kind in a learner step, in milliseconds. Operations may run at the
same time in two threads, so they may add up to more than the wall-clock time of the step. The
profiler itself takes time in each operation.
"""

import collections
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from agents.d4pg.agent import D4PG
from bench import harness, learner

_CLOCK = harness.Unit("ms by the clock", more_is_better=False)
# Part of an operation's type -> its name in tables. The first match counts.
_KINDS = {
    "MatMul": "products",
    "Cast": "conversions",
    "Adam": "Adam",
    "Elu": "activations",
    "Tanh": "activations",
    "Softmax": "softmax",
}
_REST = "the rest"
# These wait for the operations that they contain.
_CONTAINERS = ("While", "If", "StatelessIf", "StatelessWhile", "PartitionedCall")


def profiled(call: Callable[[], object], num_steps: int) -> harness.Side:
    """Returns a side whose figures are the times of the operations of a step.

    Args:
      call: takes `num_steps` learner steps.
      num_steps: learner steps in a call.
    """
    num_calls = learner.STEPS // num_steps

    def sample() -> Mapping[harness.Unit, float]:
        with tempfile.TemporaryDirectory() as folder:
            started = time.perf_counter()
            with tf.profiler.experimental.Profile(folder):
                for _ in range(num_calls):
                    call()
                seconds = time.perf_counter() - started
            (path,) = Path(folder).glob("plugins/profile/*/*.xplane.pb")
            seconds_by_kind = _by_kind(path)
        found = {_CLOCK: 1e3 * seconds / learner.STEPS}
        for kind in dict.fromkeys([*_KINDS.values(), _REST]):
            unit = harness.Unit(f"ms {kind}", more_is_better=False)
            found[unit] = 1e3 * seconds_by_kind[kind] / learner.STEPS
        return found

    for _ in range(3):  # Excludes the compilation of the step.
        call()
    return sample


def _by_kind(path: Path) -> collections.Counter[str]:
    """Returns the seconds of all operations of a profile, by kind."""
    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    (host,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    seconds: collections.Counter[str] = collections.Counter()
    for line in host.lines:
        for event in line.events:
            metadata = host.event_metadata[event.metadata_id]
            operation = metadata.display_name  # Empty for other events.
            if operation and not operation.endswith(_CONTAINERS):
                kind = next((k for part, k in _KINDS.items() if part in operation), _REST)
                seconds[kind] += event.duration_ps / 1e12
    return seconds


def main() -> None:
    """Profiles the sides."""
    options = harness.parser("learner_profile", __doc__).parse_args()
    report = harness.Report("learner_profile", options)
    sample = learner.make_sample()
    agent = D4PG(learner.D4PG_CONFIG, learner.SPEC)
    calls = {
        "D4PG, 16 steps a call": (learner.ours(agent, sample, 16), 16),
        "D4PG, 16 steps a call, bfloat16": (
            learner.ours(learner.in_bfloat16(agent), sample, 16),
            16,
        ),
        "D4PG, Acme's maths": (learner.acme_d4pg(sample), 1),
    }
    sides = {side: profiled(call, steps) for side, (call, steps) in calls.items()}
    report.add(harness.measure(sides, options.rounds), {})
    report.write()
    harness.end()


if __name__ == "__main__":
    main()
