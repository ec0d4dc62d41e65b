"""The findings of `rl-replicator doctor` about MuJoCo and rendering."""

import re
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement

import environments
from environments.pixels import rendering
from rl_replicator.cli.diagnosis import NOTE, OK, WRONG, Finding

_MEASURED_TASK = "cartpole:balance"
_MODES = ("fast", "exact")


def examine() -> Iterator[Finding]:
    """Yields whether MuJoCo works, the OpenGL renderer and its speed.

    A missing renderer is a note and not an error: training from state needs none. OpenGL is tried
    in a subprocess.
    """
    try:
        environments.make(_MEASURED_TASK, seed=0).close()
    except Exception as error:  # Bindings that do not fit raise errors of many types.
        yield _unfit(error)
        return
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


def _unfit(error: Exception) -> Finding:
    """Returns which MuJoCo dm_control needs: it reads the fields of one minor version."""
    own = metadata.version("dm-control")
    required = [Requirement(line) for line in metadata.requires("dm-control") or []]
    needed = next(str(one.specifier) for one in required if one.name == "mujoco")
    text = f"dm-control {own} does not work with mujoco {metadata.version('mujoco')}: {error}"
    advice = f"pip install 'mujoco{needed.replace('>=', '~=')}', or another dm-control"
    return Finding(WRONG, "MuJoCo", text, advice)


def _frames_per_second(mode: str) -> float:
    frame = environments.PixelConfig(render=mode)
    with environments.make(_MEASURED_TASK, seed=0, pixels=frame) as environment:
        return environment.frames_per_second()
