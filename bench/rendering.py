"""Frames per second of every way to draw, side by side in one run.

    python bench/rendering.py              # the tables
    python bench/rendering.py --picture    # writes docs/rendering.png

`plain dm_control` is `physics.render` as it comes, 'exact' the same pixels drawn with a scene that
is kept; each switch is measured alone, on top of 'exact'; 'fast' is what `PixelConfig` calls fast.
The second table is a whole environment step with an action repeat of 2. Both count seconds of
processor time, of all threads; rounds alternate and each row shows its best, so that what else the
machine does matters little. The third one is several threads with an environment each, by the
clock on the wall.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

import numpy as np

import environments
from environments.pixels import camera, rendering

TASKS = ("cartpole:balance", "ball_in_cup:catch", "walker:walk")
SIZES = (64, 84)
ROUNDS, SECONDS = 3, 0.2
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


def rate(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Calls per second of `clock` over about SECONDS."""
    count, start = 0, clock()
    while (passed := clock() - start) < SECONDS or not count:
        call()
        count += 1
    return count / passed


def best(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The best rate of each over alternating rounds."""
    rates = dict.fromkeys(calls, 0.0)
    for call in calls.values():
        call()  # Compiles shaders.
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rates[name] = max(rates[name], rate(call))
    return rates


def drawers(task: str, size: int) -> dict[str, Callable[[], object]]:
    """A function for each way to draw the first state of `task`."""
    from dm_control import suite  # After `enable`, which has chosen its OpenGL.

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


def print_settings() -> None:
    """Frames per second of processor time, and how often that of 'exact' it is."""
    columns = [(task, size) for task in TASKS for size in SIZES]
    results = [best(drawers(task, size)) for task, size in columns]
    print(
        "frames/s (times exact)".ljust(24)
        + "".join(f"{t.split(':')[0]} {s}".rjust(18) for t, s in columns)
    )
    for name in results[0]:
        cells = [f"{found[name]:.0f} ({found[name] / found['exact']:.1f})" for found in results]
        print(name.ljust(24) + "".join(cell.rjust(18) for cell in cells), flush=True)


def stepper(task: str, pixels: environments.PixelConfig | None) -> Callable[[], object]:
    environment = environments.make(task, seed=1, pixels=pixels)
    environment.reset()
    action = np.zeros(environment.action_spec().shape, np.float32)
    return lambda: environment.step(action)


def print_steps() -> None:
    """Agent steps per second of processor time: two environment steps and a frame."""
    print("\nsteps/s, 84x84, repeat 2".ljust(25) + "".join(task.rjust(20) for task in TASKS))
    results = []
    for task in TASKS:
        calls = {
            mode: stepper(task, environments.PixelConfig(84, 84, action_repeat=2, render=mode))
            for mode in ("exact", "fast")
        }
        state = stepper(task, None)
        calls["state alone"] = lambda state=state: (state(), state())
        results.append(best(calls))
    for name in results[0]:
        print(name.ljust(24) + "".join(f"{found[name]:.0f}".rjust(20) for found in results))


def print_threads() -> None:
    """Steps per second of several threads together, each with an environment of its own."""
    print(f"\nthreads, {TASKS[0]}, fast, 64x64, repeat 1: steps/s together")
    config = environments.PixelConfig(action_repeat=1, render="fast")
    for count in THREADS:
        start, rates = threading.Barrier(count), []

        def run(start=start, rates=rates) -> None:
            step = stepper(TASKS[0], config)
            start.wait()
            rates.append(max(rate(step, time.perf_counter) for _ in range(ROUNDS)))

        threads = [threading.Thread(target=run) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"{count:24d}{sum(rates):20.0f}", flush=True)


def write_picture() -> None:
    """Both modes at 84 x 84 pixels, for each task, enlarged without smoothing."""
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
    """Prints the tables, or writes the picture."""
    if sys.argv[1:] == ["--picture"]:
        write_picture()
        return
    renderer = rendering.enable()
    print(f"{renderer.kind.upper()}, {renderer.name}")
    print_settings()
    print_steps()
    print_threads()


if __name__ == "__main__":
    main()
