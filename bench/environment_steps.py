"""Environment steps of six tasks: dm_control's own, and the same in the agents' form.

    python -m bench.environment_steps

Three sides per task: unmodified dm_control; the same environment with the shorter physics step of
`environments.suite`; and that environment in the form that actors use (float32, flat, scaled).
"""

import functools
from collections.abc import Callable

import numpy as np

import environments
from bench import harness

TASKS = (
    "cartpole:swingup",
    "walker:walk",
    "reacher:easy",
    "ball_in_cup:catch",
    "cheetah:run",
    "quadruped:walk",
)
STEPS = 500


def steppers(task: str) -> dict[str, Callable[[], object]]:
    """Returns a function for each side that takes one step."""
    ours = environments.make(task, seed=1)
    from dm_control import suite  # After `environments`, which disables its OpenGL.

    plain = suite.load(*task.split(":"), task_kwargs={"random": 1})
    ours.reset()
    plain.reset()
    action = np.zeros(ours.action_spec().shape, np.float32)
    real = action.astype(np.float64)
    return {
        f"{task}, dm_control": functools.partial(plain.step, real),
        f"{task}, shorter step": functools.partial(ours.wrapped.step, real),
        f"{task}, agents' form": functools.partial(ours.step, action),
    }


def main() -> None:
    """Measures all tasks."""
    options = harness.parser("environment_steps", __doc__).parse_args()
    report = harness.Report("environment_steps", options)
    for task in TASKS:
        sides = {
            name: harness.clocked(harness.repeated(step, STEPS), STEPS, "steps")
            for name, step in steppers(task).items()
        }
        plain, *others = sides
        report.add(harness.measure(sides, options.rounds), dict.fromkeys(others, plain))
    report.write()


if __name__ == "__main__":
    main()
