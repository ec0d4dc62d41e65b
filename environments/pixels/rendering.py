"""Off-screen OpenGL: which kind this machine has, loaded no sooner than a picture is wanted.

dm_control chooses its OpenGL when it is imported, from the variable MUJOCO_GL, and headless GLFW
only fails at the first picture. So dm_control is imported with OpenGL switched off (`without_gl`),
and switched on (`enable`) by the first picture, with a kind that a subprocess has tried before: a
driver that crashes takes only that one along.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Iterator

from environments.errors import RenderingUnavailableError

VARIABLE = "MUJOCO_GL"
_OFF = ("off", "disable", "disabled", "false", "0")
_KINDS = ("egl", "osmesa")
_PACKAGES = {"egl": "libegl1 libgl1 libgl1-mesa-dri", "osmesa": "libosmesa6 libgl1"}
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software")
_LOCK = threading.Lock()
_PROBE = pathlib.Path(__file__).with_name("gl_probe.py")
_EGL_DEVICE, _CUDA_DEVICES = "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES"


@dataclasses.dataclass(frozen=True)
class Renderer:
    """An OpenGL that draws here without a screen.

    Attributes:
      kind: 'egl', 'osmesa', or what the user has put into MUJOCO_GL.
      name: what the driver calls itself, as in 'llvmpipe (LLVM 15.0.6, 256 bits)'.
      device: index of the EGL device that is the first of this process's CUDA devices; None where
        it has none, or MUJOCO_EGL_DEVICE_ID chooses.
    """

    kind: str
    name: str
    device: int | None = None

    @property
    def is_software(self) -> bool:
        return any(word in self.name.lower() for word in _SOFTWARE)


@contextlib.contextmanager
def without_gl() -> Iterator[None]:
    """Within this block dm_control and mujoco can be imported without loading OpenGL."""
    with _LOCK:
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = "disabled"
        try:
            yield
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def probe(kind: str, timeout: float = 60.0) -> Renderer | str:
    """Tries one kind of OpenGL in a subprocess: the renderer, or one line that says why not."""
    # Without CUDA_VISIBLE_DEVICES, so that a CUDA device is counted among all of the machine.
    hidden = ("PYOPENGL_PLATFORM", _CUDA_DEVICES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    device = first_cuda_device() if kind == "egl" and _EGL_DEVICE not in environment else None
    # -P keeps this directory, whose files have everyday names, out of the probe's imports.
    command = [sys.executable, "-P", str(_PROBE), *([] if device is None else [str(device)])]
    try:
        done = subprocess.run(
            command,
            env={**environment, VARIABLE: kind},
            capture_output=True,
            text=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:.0f} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    if done.returncode == 0 and lines:
        return Renderer(kind, **json.loads(lines[-1]))
    return lines[-1] if lines else f"exit status {done.returncode}"


def first_cuda_device() -> int | None:
    """The first number in CUDA_VISIBLE_DEVICES; None without it, and for a GPU's UUID."""
    first = os.environ.get(_CUDA_DEVICES, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else None


@functools.cache
def find() -> Renderer:
    """The renderer to use: MUJOCO_GL where it is set, otherwise EGL, otherwise OSMesa.

    Raises:
      RenderingUnavailableError: if none works; names the Debian packages to install.
    """
    chosen = os.environ.get(VARIABLE, "").lower()
    if chosen in _OFF:
        raise RenderingUnavailableError(
            f"expected an OpenGL to draw with, got {VARIABLE}={chosen}, which switches it off; "
            f"unset {VARIABLE}"
        )
    kinds = (chosen,) if chosen else _KINDS
    reasons = []
    for kind in kinds:
        answer = probe(kind)
        if isinstance(answer, Renderer):
            return answer
        reasons.append(f"{kind}: {answer}")
    raise RenderingUnavailableError(
        f"expected an OpenGL library that draws without a screen, got none ({'; '.join(reasons)}); "
        f"{install_hint(kinds)}"
    )


def resolve(render: str) -> str:
    """'fast' or 'exact' for a `PixelConfig.render`: 'auto' is 'fast' where OpenGL is software."""
    if render != "auto":
        return render
    return "fast" if find().is_software else "exact"


def advice(renderer: Renderer, devices: str = "/dev") -> str:
    """One line where a GPU stands idle because OpenGL is drawn in software, otherwise nothing."""
    root = pathlib.Path(devices)
    nvidia, others = sorted(root.glob("nvidia[0-9]*")), sorted(root.glob("dri/renderD*"))
    if not renderer.is_software or not (nvidia or others):
        return ""
    found = f"this machine has a GPU ({(nvidia or others)[0]}), but {renderer.name} is software"
    if nvidia:
        return (
            f"{found}: install the driver's EGL with 'apt-get install libegl-nvidia0', or start "
            "the container with NVIDIA_DRIVER_CAPABILITIES=all"
        )
    return (
        f"{found}: install its driver with 'apt-get install libgl1-mesa-dri', and let this user "
        "open that file"
    )


def install_hint(kinds: tuple[str, ...] = _KINDS) -> str:
    """The command that installs the missing Debian packages."""
    lines = [f"'apt-get install {_PACKAGES[kind]}'" for kind in kinds if kind in _PACKAGES]
    return (
        "install it with " + " or ".join(lines)
        if lines
        else f"unset {VARIABLE} to try EGL and OSMesa"
    )


def enable() -> Renderer:
    """Loads OpenGL into this process and into dm_control. Later calls are free.

    Raises:
      RenderingUnavailableError: if no OpenGL works here.
    """
    renderer = find()
    with _LOCK:
        # Child processes and Gymnasium's MuJoCo environments read it from here.
        os.environ[VARIABLE] = renderer.kind
        if renderer.device is not None:
            os.environ[_EGL_DEVICE] = str(renderer.device)
        backend = importlib.import_module("dm_control._render")
        if backend.BACKEND in _OFF:
            # Its users look up `_render.Renderer` at every picture, so reading the variable again
            # is enough.
            importlib.reload(backend)
    return renderer
