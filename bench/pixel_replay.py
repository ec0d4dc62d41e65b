"""Storing every frame once against storing stacked frames, in an n-step adder.

    python -m bench.pixel_replay

Every form stores the same recorded episode repeatedly, in a Reverb server in its own process. Bytes
are the growth of that process's memory while transitions are inserted. The form "Acme's" stores
data as Acme's `NStepTransitionAdder` (0.2.4) does behind a frame-stacking wrapper: stacked
observations and single steps in columns, in chunks of the length that Reverb chooses, and items
that refer to two stacks. It is reimplemented here on Reverb's interface, because Acme's adders
import jax. Ours stores every frame once, in chunks of several lengths, with one transition or
several in an item. Sampling ends where the learner's step begins: with stacks in Acme's form, and
in ours with the frames of each stack, which the step assembles.
"""

import collections
import os

import numpy as np
import reverb
import tensorflow as tf
from acme import specs

import environments
from agents.replay.adder import NStepTransitionAdder
from agents.replay.frames import FrameLayout
from agents.replay.input import draw, make_input_fn
from agents.replay.table import TABLE, LearnerDemand
from bench import harness, processes

STACK, N_STEP, DISCOUNT, BATCH = 3, 3, 0.99, 128
TRANSITIONS, BATCHES = 1_000, 64
# More batches than an input prefetches.
READY = 32
BYTES = harness.Unit("bytes a transition", more_is_better=False)
ACME = "Acme's"
# (frames of a chunk, transitions of an item).
OURS = ((1, 1), (4, 1), (8, 1), (1, 8), (4, 8), (8, 8), (4, 16))


def record(task, size):
    """Records an episode of random actions; returns the spec and (time step, action) pairs."""
    pixels = environments.PixelConfig(size, size, action_repeat=4, render="fast")
    environment = environments.make(task, seed=1, pixels=pixels)
    random = np.random.default_rng(1)
    steps = [(environment.reset(), None)]
    while not steps[-1][0].last():
        action = random.uniform(-1, 1, environment.action_spec().shape).astype(np.float32)
        steps.append((environment.step(action), action))
    return specs.make_environment_spec(environment), steps


def memory():
    """Returns the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(signature):
    """Starts a server; returns it and its address."""
    table = reverb.Table(
        TABLE,
        reverb.selectors.Uniform(),
        reverb.selectors.Fifo(),
        max_size=1_000_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    server = reverb.Server([table])
    return server, f"localhost:{server.port}"


class Once:
    """This project's form."""

    def __init__(self, spec, chunk_length, item_length):
        layout = FrameLayout(spec, STACK, N_STEP, chunk_length, transitions_per_item=item_length)
        self.server, self.address = serve(layout.signature)
        self.adder = NStepTransitionAdder(
            reverb.Client(self.address),
            layout,
            n_step=N_STEP,
            discount=DISCOUNT,
            initial_priority=1.0,
            max_in_flight=32,
            on_wait=lambda seconds: None,
        )
        self.batches = make_input_fn([self.address], layout, LearnerDemand(BATCH, 1, 1))(None)

    def add_episode(self, steps):
        """Stores one episode."""
        self.adder.add_first(steps[0][0])
        for timestep, action in steps[1:]:
            self.adder.add(action, timestep)
        self.adder.flush()


class Acme:
    """The storage of `acme.adders.reverb.NStepTransitionAdder` (0.2.4) after a stacking wrapper."""

    def __init__(self, spec):
        height, width, channels = spec.observations.shape
        self._last = -1  # Index of the last item's newest observation in the history.
        stacked = tf.TensorSpec([height, width, channels * STACK], tf.uint8)
        scalar = tf.TensorSpec([], tf.float32)
        self.signature = {
            "observation": stacked,
            "action": tf.TensorSpec(spec.actions.shape, tf.float32),
            "reward": scalar,
            "discount": scalar,
            "next_observation": stacked,
        }
        self.server, self.address = serve(self.signature)
        self.writer = reverb.Client(self.address).trajectory_writer(num_keep_alive_refs=N_STEP + 1)
        self.batches = draw(self.address, self.signature, BATCH, 1).map(lambda sample: sample.data)

    def add_episode(self, steps):
        """Stores one episode."""
        frames = collections.deque([steps[0][0].observation] * STACK, maxlen=STACK)
        self._open(frames, start=True)
        rewards: collections.deque[float] = collections.deque(maxlen=N_STEP)
        for timestep, action in steps[1:]:
            frames.append(timestep.observation)
            rewards.append(timestep.reward)
            self.writer.append(
                {"action": action, "reward": timestep.reward, "discount": timestep.discount}
            )
            self._open(frames, start=False)
            self._item(rewards, partial_step=True)
        self.writer.append(
            {"action": 0 * action, "reward": np.float32(0), "discount": np.float32(0)}
        )
        while len(rewards) > 1:
            rewards.popleft()
            self._item(rewards, partial_step=False)
        self.writer.end_episode()

    def _open(self, frames, start):
        observation = np.concatenate(frames, axis=-1)
        self.writer.append(
            {"observation": observation, "start_of_episode": start}, partial_step=True
        )

    def _item(self, rewards, partial_step):
        total = np.float32(sum(DISCOUNT**i * reward for i, reward in enumerate(rewards)))
        discount = np.float32(DISCOUNT ** (len(rewards) - 1))
        self.writer.append(
            {"n_step_return": total, "total_discount": discount}, partial_step=partial_step
        )
        history, newest = self.writer.history, -1 if partial_step else self._last
        oldest = newest - len(rewards)
        item = {
            "observation": history["observation"][oldest],
            "action": history["action"][oldest],
            "reward": history["n_step_return"][-1],
            "discount": history["total_discount"][-1],
            "next_observation": history["observation"][newest],
        }
        self._last = -2 if partial_step else self._last - 1
        self.writer.create_item(TABLE, 1.0, item)
        self.writer.flush(5)


def make_side(form, steps) -> harness.Side:
    """Returns a side that inserts transitions, and then samples batches."""
    episodes = -(-TRANSITIONS // (len(steps) - 1))
    amount = episodes * (len(steps) - 1)

    def insert() -> None:
        for _ in range(episodes):
            form.add_episode(steps)

    insert()
    iterator = iter(form.batches.prefetch(2))
    sample = harness.clocked(
        harness.repeated(lambda: next(iterator), BATCHES), BATCHES * BATCH, "samples"
    )

    def measure():
        before = memory()
        figures = harness.clocked(insert, amount, "transitions")()
        grown = {BYTES: max(1.0, (memory() - before) / amount)}
        harness.repeated(lambda: next(iterator), READY)()
        return {**figures, **grown, **sample()}

    return measure


def main() -> None:
    """Measures all forms, or serves one in this process."""
    parser = harness.parser("pixel_replay", __doc__)
    parser.add_argument("--task", default="cartpole:swingup")
    parser.add_argument("--size", type=int, default=84)
    parser.add_argument("--form", help="be the process of this form: acme, or CHUNK,ITEM")
    options = parser.parse_args()
    if options.form is not None:
        tf.config.threading.set_intra_op_parallelism_threads(1)
        spec, steps = record(options.task, options.size)
        is_acme = options.form == "acme"
        form = Acme(spec) if is_acme else Once(spec, *map(int, options.form.split(",")))
        processes.serve(make_side(form, steps))
        return
    report = harness.Report("pixel_replay", options)
    forms = {ACME: "acme"}
    for chunk, item in OURS:
        forms[f"ours, items of {item}, chunks of {chunk}"] = f"{chunk},{item}"
    words = ["bench.pixel_replay", "--task", options.task, "--size", str(options.size)]
    commands = {name: [[*words, "--form", form]] for name, form in forms.items()}
    with processes.groups(commands) as sides:
        samples = harness.measure(sides, options.rounds)
    report.add(samples, {name: ACME for name in forms if name != ACME})
    report.write()


if __name__ == "__main__":
    main()
