"""Frames and steps of every way to render, against plain dm_control.

    python -m bench.rendering

`plain dm_control` is unmodified `physics.render`; `exact` renders the same pixels with a scene that
is reused; each setting is measured alone, on top of `exact`; `fast` is the mode 'fast' of
`PixelConfig`. "steps" are agent steps of two environment steps and a frame. The last sides are
several threads together, each with its own environment. With --picture it measures nothing, but
writes docs/rendering.png, which shows both modes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent import futures

import numpy as np

import environments
from bench import harness
from environments.pixels import camera, rendering

TASKS = ("cartpole:balance", "ball_in_cup:catch", "walker:walk")
SIZES = (64, 84)
FRAMES, STEPS = 10, 10
THREADS = (1, 2, 4)
PICTURE = "docs/rendering.png"

_OFF = {"offsamples": 0, "shadowsize": 0}
SETTINGS = {
    "exact": camera.EXACT,
    "no shadows": camera.RenderSettings(("shadow",), (("shadowsize", 0),)),
    "no reflections": camera.RenderSettings(("reflection",)),
    "no multisampling": camera.RenderSettings((), (("offsamples", 0),)),
    "16 x 8 faces": camera.RenderSettings((), (("numslices", 16), ("numstacks", 8))),
    "no sky": camera.RenderSettings(("skybox",)),
    "no haze": camera.RenderSettings(("haze",)),
    "fast": camera.FAST,
    "fast, 28 x 16 faces": camera.RenderSettings(camera.FAST.flags_off, tuple(_OFF.items())),
    "fast, no sky": camera.RenderSettings((*camera.FAST.flags_off, "skybox"), camera.FAST.quality),
}


def drawers(task: str, size: int) -> dict[str, Callable[[], object]]:
    """Returns a function for each way to render the first state of `task`."""
    from dm_control import suite  # After `enable`, which chooses its OpenGL.

    environment = suite.load(*task.split(":"), task_kwargs={"random": 1})
    environment.reset()
    physics = environment.physics
    calls: dict[str, Callable[[], object]] = {
        "plain dm_control": lambda: physics.render(size, size, 0)
    }
    for name, settings in SETTINGS.items():
        calls[name] = camera.Camera(
            physics.model.ptr, physics.data.ptr, size, size, 0, settings
        ).frame
    return calls


def stepper(task: str, pixels: environments.PixelConfig | None) -> Callable[[], object]:
    """Returns a function that takes one step of an environment."""
    environment = environments.make(task, seed=1, pixels=pixels)
    environment.reset()
    action = np.zeros(environment.action_spec().shape, np.float32)
    return lambda: environment.step(action)


def step_sides(task: str) -> dict[str, harness.Side]:
    """Returns sides: agent steps with a frame, and without."""
    config = functools.partial(environments.PixelConfig, 84, 84, action_repeat=2)
    calls = {
        "state alone": harness.repeated(stepper(task, None), 2),
        **{mode: stepper(task, config(render=mode)) for mode in ("exact", "fast")},
    }
    return {
        f"{task}, 84 x 84, repeat 2, {name}": harness.clocked(
            harness.repeated(call, STEPS), STEPS, "steps"
        )
        for name, call in calls.items()
    }


def thread_side(count: int) -> harness.Side:
    """Returns a side: the steps of several threads together, each with its own environment."""
    config = environments.PixelConfig(action_repeat=1, render="fast")

    # An environment is made in the thread that draws it: OpenGL contexts belong to threads.
    threads = [futures.ThreadPoolExecutor(1) for _ in range(count)]
    steps = [thread.submit(stepper, TASKS[0], config).result() for thread in threads]

    def work() -> None:
        futures.wait(
            [
                thread.submit(harness.repeated(step, STEPS))
                for thread, step in zip(threads, steps, strict=True)
            ]
        )

    return harness.clocked(work, STEPS * count, "steps")


def write_picture() -> None:
    """Draws both modes at 84 x 84 pixels, for each task, enlarged without smoothing."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(TASKS), figsize=(3 * len(TASKS), 6.3))
    for row, render in zip(axes, ("exact", "fast"), strict=True):
        for axis, task in zip(row, TASKS, strict=True):
            config = environments.PixelConfig(84, 84, render=render)
            environment = environments.make(task, seed=4, pixels=config)
            axis.imshow(environment.reset().observation, interpolation="nearest")
            axis.set_title(f"{task}, {render}", fontsize=10)
            axis.axis("off")
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=80)
    print(PICTURE)


def main() -> None:
    """Measures all sides, or writes the picture."""
    parser = harness.parser("rendering", __doc__)
    parser.add_argument("--picture", action="store_true", help="write docs/rendering.png")
    options = parser.parse_args()
    if options.picture:
        write_picture()
        return
    report = harness.Report("rendering", options)
    renderer = rendering.enable()
    print(f"{renderer.kind.upper()}, {renderer.name}")
    for task in TASKS:
        for size in SIZES:
            sides = {
                f"{task}, {size} x {size}, {name}": harness.clocked(
                    harness.repeated(call, FRAMES), FRAMES, "frames"
                )
                for name, call in drawers(task, size).items()
            }
            plain, *others = sides
            report.add(harness.measure(sides, options.rounds), dict.fromkeys(others, plain))
    for task in TASKS:
        report.add(harness.measure(step_sides(task), options.rounds))
    threads = {f"{TASKS[0]}, 64 x 64, fast, {count} threads": count for count in THREADS}
    sides = {name: thread_side(count) for name, count in threads.items()}
    one, *others = sides
    report.add(harness.measure(sides, options.rounds), dict.fromkeys(others, one))
    report.write()


if __name__ == "__main__":
    main()
