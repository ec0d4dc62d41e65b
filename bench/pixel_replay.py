"""Frames stored once against stacked frames in an n-step adder: bytes held, and time to sample.

    PYTHONPATH=. python bench/pixel_replay.py [--size 84] [--task cartpole:swingup]

Every form stores the same recorded episode again and again, in a Reverb server of a process of its
own. Bytes are the growth of that process's memory between two numbers of transitions, so that what
a server costs once does not count. The form "acme" stores as Acme's `NStepTransitionAdder` (0.2.4)
does behind a frame-stacking wrapper: stacked observations and single steps in columns, in chunks of
the length that Reverb chooses, and items that refer to two stacks. It is made anew here, from
Reverb's interface, since Acme's adders import jax.
"""

import argparse
import collections
import os
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import reverb
import tensorflow as tf
from acme import specs

import environments
from agents.replay.adder import NStepTransitionAdder
from agents.replay.frames import FrameLayout
from agents.replay.table import TABLE

STACK, N_STEP, DISCOUNT, BATCH = 3, 3, 0.99, 128
FIRST, LAST, SECONDS = 3_000, 15_000, 4.0


def record(task, size):
    """One episode under random actions: the spec, and (time step, action) pairs."""
    pixels = environments.PixelConfig(size, size, action_repeat=4, render="fast")
    environment = environments.make(task, seed=1, pixels=pixels)
    random = np.random.default_rng(1)
    steps = [(environment.reset(), None)]
    while not steps[-1][0].last():
        action = random.uniform(-1, 1, environment.action_spec().shape).astype(np.float32)
        steps.append((environment.step(action), action))
    return specs.make_environment_spec(environment), steps


def memory():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve(signature):
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

    def __init__(self, spec, chunk_length):
        layout = FrameLayout(spec, STACK, N_STEP, chunk_length)
        self.signature = layout.signature
        self.server, self.address = serve(self.signature)
        self.adder = NStepTransitionAdder(
            reverb.Client(self.address),
            layout,
            n_step=N_STEP,
            discount=DISCOUNT,
            initial_priority=1.0,
            max_in_flight_items=32,
            on_wait=lambda seconds: None,
        )
        self.to_transition = layout.unpack

    def add_episode(self, steps):
        self.adder.add_first(steps[0][0])
        for timestep, action in steps[1:]:
            self.adder.add(action, timestep)
        self.adder.flush()


class Acme:
    """The storage of `acme.adders.reverb.NStepTransitionAdder` (0.2.4) after a stacking wrapper."""

    def __init__(self, spec):
        height, width, channels = spec.observations.shape
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
        self.to_transition = lambda data: data

    def add_episode(self, steps):
        frames = collections.deque([steps[0][0].observation] * STACK, maxlen=STACK)
        self._open(frames, start=True)
        rewards = collections.deque(maxlen=N_STEP)
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


def measure(form, steps):
    """Prints bytes a transition, processor time to insert one, and to sample a batch."""
    sizes, started, count = [], time.process_time(), 0
    for total in (FIRST, LAST):
        while count < total:
            form.add_episode(steps)
            count += len(steps) - 1
        time.sleep(0.5)  # Items on their way.
        sizes.append((count, memory()))
    inserting = (time.process_time() - started) / count
    (few, before), (many, after) = sizes
    dataset = reverb.TrajectoryDataset(
        form.address,
        TABLE,
        dtypes=tf.nest.map_structure(lambda s: s.dtype, form.signature),
        shapes=tf.nest.map_structure(lambda s: s.shape, form.signature),
        max_in_flight_samples_per_worker=2 * BATCH,
        num_workers_per_iterator=1,
    )
    batches = dataset.batch(BATCH, drop_remainder=True)
    batches = batches.map(lambda sample: form.to_transition(sample.data)).prefetch(2)
    iterator = iter(batches)
    next(iterator)
    wall, processor, drawn = time.monotonic(), time.process_time(), 0
    while time.monotonic() - wall < SECONDS:
        next(iterator)
        drawn += 1
    processor = (time.process_time() - processor) / drawn
    wall = (time.monotonic() - wall) / drawn
    print(
        f"{(after - before) / (many - few):8.0f} bytes a transition   insert "
        f"{inserting * 1e6:5.0f} us   batch of {BATCH}: {processor * 1e3:5.1f} ms of processor, "
        f"{BATCH / wall:6.0f} samples/s",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="cartpole:swingup")
    parser.add_argument("--size", type=int, default=84)
    parser.add_argument("--form", help="only this one, in this process")
    options = parser.parse_args()
    if options.form is not None:
        spec, steps = record(options.task, options.size)
        name, _, chunk_length = options.form.partition(":")
        measure(Acme(spec) if name == "acme" else Once(spec, int(chunk_length)), steps)
        return
    print(f"{options.task}, {options.size} x {options.size} x 3, stack {STACK}, n = {N_STEP}")
    for form in ("acme", *(f"once:{length}" for length in (1, 2, 3, 4, 6, 8, 12))):
        print(f"{form:>8}", end=" ", flush=True)
        command = [sys.executable, __file__, "--task", options.task, "--size", str(options.size)]
        subprocess.run([*command, "--form", form], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
