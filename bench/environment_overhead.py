"""Processor time of one environment step: dm_control's own, and ours in the agents' form.

    python bench/environment_overhead.py

Columns: dm_control as it comes; the same environment with `environments.suite.fast_physics`; what
an actor sees (float32, flat, scaled), all in microseconds, the best of twelve rounds.
"""

import time
from collections.abc import Callable

import numpy as np

import environments

TASKS = (
    "cartpole:swingup",
    "walker:walk",
    "reacher:easy",
    "ball_in_cup:catch",
    "cheetah:run",
    "quadruped:walk",
)
STEPS, ROUNDS = 300, 12


def microseconds(step: Callable[[], object]) -> float:
    """Processor time of one call, free of what else the machine does."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(STEPS):
            step()
        best = min(best, (time.process_time() - start) / STEPS)
    return best * 1e6


def main() -> None:
    """Prints the table."""
    print(f"{'task':20}{'dm_control':>12}{'shortened':>12}{'flat':>12}   us per step")
    for name in TASKS:
        ours = environments.make(name, seed=1)
        from dm_control import suite  # After `environments`, which keeps OpenGL out of it.

        plain = suite.load(*name.split(":"), task_kwargs={"random": 1})
        ours.reset()
        plain.reset()
        action = np.zeros(ours.action_spec().shape, np.float32)
        real = action.astype(np.float64)
        figures = (
            microseconds(lambda plain=plain, real=real: plain.step(real)),
            microseconds(lambda ours=ours, real=real: ours.wrapped.step(real)),
            microseconds(lambda ours=ours, action=action: ours.step(action)),
        )
        print(f"{name:20}" + "".join(f"{figure:12.1f}" for figure in figures), flush=True)


if __name__ == "__main__":
    main()
