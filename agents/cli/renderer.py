"""The findings of `rl-replicator doctor` about rendering."""

import re
from collections.abc import Iterator

import environments
from environments.pixels import rendering
from rl_replicator.cli.diagnosis import NOTE, OK, Finding

_MEASURED_TASK = "cartpole:balance"
_MODES = ("fast", "exact")


def examine() -> Iterator[Finding]:
    """Yields the OpenGL renderer and its speed. Tries OpenGL in a subprocess.

    A missing renderer is a note and not an error: training from state needs none.
    """
    try:
        renderer = rendering.find()
        rates = [f"{mode} {_frames_per_second(mode):.0f}" for mode in _MODES]
    except Exception as error:  # OpenGL libraries raise errors of many types.
        text = re.sub(r"\s+", " ", str(error))
        yield Finding(NOTE, "renderer", f"none; no videos, no training from pixels: {text}")
        return
    kind = "software" if renderer.is_software else "hardware"
    text = f"{renderer.name} ({renderer.kind}, {kind}); frames/s of {_MEASURED_TASK} at 64x64: "
    text += ", ".join(rates)
    advice = rendering.advice(renderer)
    yield Finding(NOTE if advice else OK, "renderer", text, advice)


def _frames_per_second(mode: str) -> float:
    frame = environments.PixelConfig(render=mode)
    with environments.make(_MEASURED_TASK, seed=0, pixels=frame) as environment:
        return environment.frames_per_second()
