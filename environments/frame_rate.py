"""Measures how fast frames of an environment are rendered on this machine.

It runs in its own process, so that the calling process does not load OpenGL:

    python -m environments.frame_rate JSON  (the arguments of `measure`)
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from environments import catalogue
from environments.errors import RenderingUnavailableError
from environments.pixels import rendering
from environments.pixels.config import PixelConfig

if TYPE_CHECKING:
    from environments.pixels.environment import PixelEnvironment

_SECONDS, _TIMEOUT = 0.3, 120.0


class Rate(NamedTuple):
    """The frame rate of one `PixelConfig`.

    Attributes:
      render_mode: see `PixelEnvironment.render_mode`.
      frames_per_second: rate of rendering, without simulation.
    """

    render_mode: str
    frames_per_second: float


def line(
    name: str, config: PixelConfig, wrap: Sequence[str] = (), time_limit: int | None = None
) -> str:
    """Describes renderer, render mode and frame rate, for the start of a run. Takes seconds.

    A timeout is not an error: an environment may take minutes to construct, and the run itself
    checks for that.

    Args:
      name: name of the environment.
      config: configuration of the frames.
      wrap: see `catalogue.make`.
      time_limit: see `catalogue.make`.

    Returns:
      One line of text.

    Raises:
      RenderingUnavailableError: if OpenGL is unavailable on this machine, or rendering fails.
    """
    try:
        (rate,) = measure(name, [config], wrap, time_limit)
    except TimeoutError:
        return f"rendering: no frames within {_TIMEOUT:.0f} s, so their rate is unknown"
    if rate.render_mode == "own":
        drawn_by = "by the environment itself"
    else:
        renderer = rendering.find()
        advice = rendering.advice(renderer)
        drawn_by = f"{renderer.kind.upper()}, {renderer.name}, {rate.render_mode}"
        drawn_by += f" ({advice})" if advice else ""
    size = f"{config.height}x{config.width}"
    return f"rendering: {drawn_by}, {size}: {rate.frames_per_second:.0f} frames/s"


def measure(
    name: str,
    configs: Sequence[PixelConfig],
    wrap: Sequence[str] = (),
    time_limit: int | None = None,
) -> list[Rate]:
    """Measures frame rates, in a subprocess.

    Args:
      name: name of the environment.
      configs: configurations to measure.
      wrap: see `catalogue.make`.
      time_limit: see `catalogue.make`.

    Returns:
      The rate of each configuration.

    Raises:
      RenderingUnavailableError: if rendering fails. The message holds the error's last line.
      TimeoutError: if the frames take more than two minutes, including imports and construction.
    """
    arguments = {
        "name": name,
        "configs": [dataclasses.asdict(config) for config in configs],
        "wrap": list(wrap),
        "time_limit": time_limit,
    }
    command = [sys.executable, "-m", __name__, json.dumps(arguments)]
    # The subprocess must find factories on the same path as this process.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"expected a few frames of {name} within {_TIMEOUT:.0f} s, got none"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RenderingUnavailableError(f"expected frames of {name}, got: {reason}")
    return [Rate(*pair) for pair in json.loads(done.stdout.splitlines()[-1])]


def frames_per_second(environment: PixelEnvironment) -> float:
    """Measures how often per second an environment renders its first state.

    Args:
      environment: the environment, which is reset.
    """
    environment.reset()
    environment.frame()  # The first frame compiles shaders.
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < _SECONDS or not count:
        environment.frame()
        count += 1
    return count / passed


def main() -> None:
    """Prints a JSON list of [render mode, frames per second], and suppresses all other output."""
    # An environment may print as well, even from C or when the process exits.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    given, rates = json.loads(sys.argv[1]), []
    for config in given["configs"]:
        pixels = PixelConfig(**config)
        environment = catalogue.make(given["name"], 0, pixels, given["wrap"], given["time_limit"])
        rates.append((environment.render_mode, frames_per_second(environment)))
        environment.close()
    with answer:
        print(json.dumps(rates), file=answer)


if __name__ == "__main__":
    main()
