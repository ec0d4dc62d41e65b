"""The learner from pixels: steps per second on 1 and 2 replicas, and what it waits for; an actor.

    PYTHONPATH=. python bench/pixel_learner.py [--precision bfloat16] [--task cartpole:swingup]

A table is filled with real episodes and is then read without a limit, so that the learner is as
fast as it can be: once alone, and once with an actor beside it. "Waited" is the share of the time
in which the learner's queue of batches was empty as a step began. The last table is an actor's:
processor and wall time of each part of its loop, every part measured by itself.
"""

import argparse
import dataclasses
import os
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(max(1, (os.cpu_count() or 1) // 2)))

import numpy as np
import reverb
import tensorflow as tf

import rl_replicator as rr
from agents.agent import ExplorationContext
from agents.d4pg.agent import D4PG
from agents.d4pg.config import PixelD4PGConfig
from agents.environment_loop import explore
from agents.task import Task
from environments import PixelConfig

FILL, SECONDS = 2_000, 10.0


class Weights:
    """Stands where actors ask a learner."""

    def __init__(self, learner):
        self.get_variables = learner.get_variables


def serve(agent):
    """A server of the agent's table without a limiter, and its address."""
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


def measure_learner(learner, seconds, steps_per_call):
    """Steps per second, processor milliseconds a step, and the share of calls that waited."""
    learner.step()
    learner.step()
    waited, calls = 0.0, 0
    started, processor = time.monotonic(), time.process_time()
    while time.monotonic() - started < seconds:
        began = time.monotonic()
        while learner.starved():
            time.sleep(1e-4)
        waited += time.monotonic() - began
        learner.step()
        calls += 1
    wall = time.monotonic() - started
    steps = calls * steps_per_call
    return steps / wall, 1e3 * (time.process_time() - processor) / steps, waited / wall


def act(agent, learner, task, address, stop, counts):
    """An actor in a thread, as in a run."""
    adder = agent.make_adder(reverb.Client(address), lambda seconds: None)
    context = ExplorationContext(np.random.default_rng(0))
    actor = agent.make_actor(Weights(learner), [adder], [context])
    for _ in explore([task.make(seed=2)], actor):
        counts[0] += 1
        if stop.is_set():
            return


def learners(config, task):
    spec = task.spec()
    for replicas in ("single_device", "multi_device:2"):
        for batch in (config.global_batch_size,):
            # One step a call, so that the wait before a call is the wait of that step.
            agent = D4PG(dataclasses.replace(config, steps_per_call=1), spec)
            server, address = serve(agent)
            fill(agent, task, address)
            learner = agent.make_learner(rr.make(replicas), [address], 100_000)
            rate, processor, waited = measure_learner(learner, SECONDS, 1)
            print(
                f"{replicas:>15}, batch {batch}: {rate:5.1f} steps/s, {processor:4.0f} ms of "
                f"processor a step, waited for input {waited:.1%}",
                flush=True,
            )
            stop, counts = threading.Event(), [0]
            arguments = (agent, learner, task, address, stop, counts)
            thread = threading.Thread(target=act, args=arguments)
            thread.start()
            started = time.monotonic()
            rate, processor, waited = measure_learner(learner, SECONDS, 1)
            acted = counts[0] * task.action_repeat / (time.monotonic() - started)
            stop.set()
            thread.join()
            print(
                f"{'':>15}  with an actor: {rate:5.1f} steps/s, waited {waited:.1%}; the actor "
                f"{acted:.0f} frames/s",
                flush=True,
            )
            learner.close()
            server.stop()


def actor(config, task):
    """Where an actor's time goes."""
    agent = D4PG(config, task.spec())
    server, address = serve(agent)
    learner = agent.make_learner(rr.make("single_device"), [address], 100_000)
    adder = agent.make_adder(reverb.Client(address), lambda seconds: None)
    policy = agent.make_evaluator(Weights(learner))
    environment = task.make(seed=3)
    state = Task(task.name).make(seed=3)
    first = environment.reset()
    policy.observe_first(first)
    adder.add_first(first)
    state.reset()
    action = policy.select_action(first.observation)
    step = environment.step(action)._replace(step_type=1)

    def simulate():
        for _ in range(task.action_repeat):
            state.step(action)

    parts = {
        "simulation": simulate,
        "rendering": environment.frame,
        "stack and policy": lambda: policy.select_action(step.observation),
        "insert": lambda: adder.add(action, step),
    }
    total = 0.0
    for name, part in parts.items():
        part()
        count, processor, started = 0, time.process_time(), time.monotonic()
        while time.monotonic() - started < 2.0:
            part()
            count += 1
        processor = 1e3 * (time.process_time() - processor) / count
        total += processor
        wall = 1e3 * (time.monotonic() - started) / count
        print(f"{name:>17}: {processor:5.2f} ms of processor, {wall:5.2f} ms", flush=True)
    rate = 1e3 * task.action_repeat / total
    print(f"{'sum':>17}: {total:5.2f} ms of processor, {rate:.0f} frames/s")
    learner.close()
    server.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="cartpole:swingup")
    parser.add_argument("--precision", default="auto", choices=("auto", "float32", "bfloat16"))
    options = parser.parse_args()
    rr.split_cpu(2)
    task = Task(options.task, PixelConfig())
    config = PixelD4PGConfig(precision=options.precision)
    print(f"{options.task}, {options.precision}, encoder {config.encoder}, tf {tf.__version__}")
    learners(config, task)
    actor(config, task)


if __name__ == "__main__":
    main()
