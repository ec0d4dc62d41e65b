"""The learner from pixels on 1 and 2 replicas, and the parts of an actor.

    python -m bench.pixel_learner

D4PG on 64 x 64 frames. A table is filled with real episodes and is then read without a rate limit,
so that the learner runs at full speed. "waited" is the share of the time for which the learner had
to wait for batches before its steps. "encoders alone" is the minimum work of a step: one encoder
forward and backward, the other forward, on frames in memory. "actor" sides are the parts of an
actor's loop, each measured separately. On a machine with one GPU, XLA replaces the second replica.
"""

import functools
import time
from collections.abc import Mapping

import numpy as np
import reverb
import tensorflow as tf

import rl_replicator as rr
from agents.config import resolved
from agents.d4pg.agent import D4PG
from agents.d4pg.config import PixelD4PGConfig
from agents.program import share_processors
from agents.task import Task
from bench import harness
from environments import PixelConfig

FILL, CALLS, REPEATS = 1_000, 10, 20
WAITED = harness.Unit("share of the time waited", more_is_better=False)


def serve(agent):
    """Starts a server of the agent's table without a limiter; returns it and its address."""
    (table,) = agent.make_tables(1)
    free = reverb.Table(
        name=table.name,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=100_000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=agent.layout.signature,
    )
    server = reverb.Server([free])
    return server, f"localhost:{server.port}"


def fill(agent, task, address):
    """Stores episodes of random actions."""
    adder = agent.make_adder(reverb.Client(address), lambda seconds: None)
    environment, random = task.make(seed=1), np.random.default_rng(1)
    timestep, added = environment.reset(), 0
    adder.add_first(timestep)
    while added < FILL:
        action = random.uniform(-1, 1, environment.action_spec().shape).astype(np.float32)
        timestep = environment.step(action)
        adder.add(action, timestep)
        added += 1
        if timestep.last():
            adder.add_first(environment.reset())
    adder.flush()


def learner_side(learner) -> harness.Side:
    """Returns a side: steps of a learner, one per call."""

    def sample() -> Mapping[harness.Unit, float]:
        waited = 0.0

        def work() -> None:
            nonlocal waited
            for _ in range(CALLS):
                began = time.perf_counter()
                while learner.starved():
                    time.sleep(1e-4)
                waited += time.perf_counter() - began
                learner.step()

        began = time.perf_counter()
        figures = harness.clocked(harness.synchronized(work), CALLS, "learner steps")()
        return {**figures, WAITED: waited / (time.perf_counter() - began)}

    return sample


def encoders_side(agent) -> harness.Side:
    """Returns a side: the encoders of a step."""
    batch, layout = agent.config.global_batch_size, agent.layout
    shape = [batch, layout.stack, *layout.frame_shape]
    frames = tf.cast(tf.random.uniform(shape, 0, 256, tf.int32), tf.uint8)
    stacks = agent.observations.augment(frames, tf.zeros([2], tf.int32))
    online, target = (agent.observations.make_encoder(name) for name in ("online", "target"))
    online(stacks), target(stacks)  # Builds them.

    @tf.function(autograph=False)
    def step() -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(online(stacks) ** 2)
        gradients = tape.gradient(loss, online.trainable_variables)
        return tf.linalg.global_norm(gradients), tf.reduce_mean(target(stacks))

    work = harness.synchronized(harness.repeated(step, CALLS))
    return harness.clocked(work, CALLS, "learner steps")


def actor_sides(agent, learner, task, address) -> dict[str, harness.Side]:
    """Returns sides: the parts of an actor's loop."""
    adder = agent.make_adder(reverb.Client(address), lambda seconds: None)
    policy = agent.make_evaluator(learner)
    environment = task.make(seed=3)
    state = Task(task.name).make(seed=3)
    first = environment.reset()
    policy.observe_first(first)
    adder.add_first(first)
    state.reset()
    action = policy.select_action(first.observation)
    step = environment.step(action)._replace(step_type=1)
    parts = {
        "simulation": harness.repeated(lambda: state.step(action), task.action_repeat),
        "rendering": environment.frame,
        "stack and policy": functools.partial(policy.select_action, step.observation),
        "insert": functools.partial(adder.add, action, step),
    }
    return {
        f"actor, {name}": harness.clocked(harness.repeated(part, REPEATS), REPEATS, "agent steps")
        for name, part in parts.items()
    }


def main() -> None:
    """Measures learners and the actor's parts."""
    parser = harness.parser("pixel_learner", __doc__)
    parser.add_argument("--task", default="cartpole:swingup")
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    options = parser.parse_args()
    report = harness.Report("pixel_learner", options)
    share_processors()  # Before TensorFlow's threads start.
    rr.split_cpu(2)
    task = Task(options.task, PixelConfig())
    # One step per call, so that the wait before a call is the wait of that step.
    config = PixelD4PGConfig(precision=options.precision, steps_per_call=1)
    config = resolved(config, {}, task.action_repeat)
    agent = D4PG(config, task.spec())
    server, address = serve(agent)
    fill(agent, task, address)
    one_gpu = len(tf.config.list_physical_devices("GPU")) == 1
    names = ["single_device", "single_device:xla" if one_gpu else "multi_device:2"]
    learners = {name: agent.make_learner(rr.make(name), [address], 100_000) for name in names}
    for learner in learners.values():
        learner.step()  # Traces it, and starts its input: without it there is nothing to wait for.
    one = names[0]
    sides = {name: learner_side(learner) for name, learner in learners.items()}
    bare = "encoders alone"
    sides[bare] = encoders_side(agent)
    report.add(harness.measure(sides, options.rounds), {one: bare, **dict.fromkeys(names[1:], one)})
    report.add(harness.measure(actor_sides(agent, learners[one], task, address), options.rounds))
    for learner in learners.values():
        learner.close()
    server.stop()
    report.write()


if __name__ == "__main__":
    main()
