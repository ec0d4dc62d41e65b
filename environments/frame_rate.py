"""How fast frames are drawn here: measured in a process of its own, so that OpenGL stays out of the
one that asks.

    python -m environments.pixels.frame_rate TASK [JSON of a PixelConfig]...
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from environments import catalogue
from environments.errors import RenderingUnavailableError
from environments.pixels import rendering
from environments.pixels.config import PixelConfig

if TYPE_CHECKING:
    from environments.pixels.environment import PixelEnvironment

_SECONDS, _TIMEOUT = 0.3, 120.0


class Rate(NamedTuple):
    """Frames per second of one PixelConfig; `look` as in `PixelEnvironment.look`."""

    look: str
    frames_per_second: float


def line(name: str, config: PixelConfig) -> str:
    """What a run says at its start: who draws, how, and how fast. Takes seconds.

    Raises:
      RenderingUnavailableError: if no OpenGL works here, or drawing the environment fails.
    """
    (rate,) = measure(name, config)
    if rate.look == "own":
        drawn_by = "by the environment itself"
    else:
        renderer = rendering.find()
        advice = rendering.advice(renderer)
        drawn_by = f"{renderer.kind.upper()}, {renderer.name}, {rate.look}"
        drawn_by += f" ({advice})" if advice else ""
    size = f"{config.height}x{config.width}"
    return f"rendering: {drawn_by}, {size}: {rate.frames_per_second:.0f} frames/s"


def measure(name: str, *configs: PixelConfig) -> list[Rate]:
    """Rates of drawing the environment `name`, simulation not included; one for each config.

    Raises:
      RenderingUnavailableError: if that fails; the last line of the error is told.
    """
    command = [sys.executable, "-m", __name__, name]
    command += [json.dumps(dataclasses.asdict(config)) for config in configs]
    # Factories are found wherever this process finds them.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise RenderingUnavailableError(
            f"expected a few frames of {name} within {_TIMEOUT:.0f} s, got none"
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise RenderingUnavailableError(f"expected frames of {name}, got: {reason}")
    return [Rate(*pair) for pair in json.loads(done.stdout.splitlines()[-1])]


def frames_per_second(environment: PixelEnvironment, seconds: float = _SECONDS) -> float:
    """Draws the first state over and over for about `seconds`."""
    environment.reset()
    environment.frame()  # The first ones compile shaders.
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or not count:
        environment.frame()
        count += 1
    return count / passed


def main() -> None:
    """Prints a JSON list of [look, frames per second]."""
    rates = []
    for text in sys.argv[2:]:
        environment = catalogue.make(sys.argv[1], seed=0, pixels=PixelConfig(**json.loads(text)))
        rates.append((environment.look, frames_per_second(environment)))
        environment.close()
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
