"""Off-screen OpenGL: finds the kind that works on this machine, and loads it for the first frame.

dm_control chooses its OpenGL from the variable MUJOCO_GL when it is imported, and GLFW without a
screen fails only at the first frame. So dm_control is imported with OpenGL disabled
(`opengl_disabled`), and the first frame enables it (`enable`), even if a user's code renders it
directly with dm_control or MuJoCo. Any thread may then use dm_control's contexts. Each kind is
tested in a subprocess first, because a driver may crash its process.
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
from typing import Any

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
    """An OpenGL implementation that renders off-screen.

    Attributes:
      kind: 'egl', 'osmesa', or the value of MUJOCO_GL.
      name: name of the driver, such as 'llvmpipe (LLVM 15.0.6, 256 bits)'.
      device: index of the EGL device that is this process's first CUDA device; None if there is
        none, or if MUJOCO_EGL_DEVICE_ID is set.
    """

    kind: str
    name: str
    device: int | None = None

    @property
    def is_software(self) -> bool:
        """Whether the driver renders on the CPU."""
        return any(word in self.name.lower() for word in _SOFTWARE)


@contextlib.contextmanager
def opengl_disabled() -> Iterator[None]:
    """Returns a context in which importing dm_control and mujoco does not load OpenGL.

    It does not change the variable once dm_control has read it: other threads may read it as well,
    or start a process.
    """
    with _LOCK:
        if "dm_control._render" in sys.modules:
            yield
            return
        before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = "disabled"
        try:
            yield
            _enable_on_demand()
        finally:
            if before is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = before


def prepare() -> None:
    """Lets a user's module draw by itself. Call it before such a module is imported.

    It imports dm_control's and MuJoCo's OpenGL disabled, to be enabled when a context is opened.
    """
    with opengl_disabled():
        for name in ("mujoco", "dm_control._render"):
            importlib.import_module(name)


def _enable_on_demand() -> None:
    """Installs hooks that enable OpenGL when dm_control or MuJoCo itself opens a context.

    Imported with OpenGL disabled, dm_control refuses to open one, and MuJoCo lacks the class.
    """
    backend: Any = sys.modules.get("dm_control._render")
    if backend is None or backend.BACKEND not in _OFF:
        return
    backend.Renderer = _dm_control_context  # Until `enable` reloads the module.
    for name in ("mujoco", "mujoco.gl_context", "mujoco.rendering.classic.gl_context"):
        with contextlib.suppress(ModuleNotFoundError):  # Versions of MuJoCo differ.
            module: Any = importlib.import_module(name)
            if not hasattr(module, "GLContext"):
                module.GLContext = _mujoco_context


def _dm_control_context(*args: Any, **kwargs: Any) -> Any:
    enable()
    return importlib.import_module("dm_control._render").Renderer(*args, **kwargs)


def _mujoco_context(width: int, height: int) -> Any:
    return importlib.import_module(f"mujoco.{enable().kind}").GLContext(width, height)


def probe(kind: str, timeout: float = 60.0) -> Renderer | str:
    """Tries a kind of OpenGL in a subprocess.

    Args:
      kind: value for MUJOCO_GL.
      timeout: seconds after which the attempt counts as failed.

    Returns:
      The renderer if it works; otherwise one line that says why not.
    """
    # Without CUDA_VISIBLE_DEVICES, so that the subprocess counts all CUDA devices of the machine.
    hidden = ("PYOPENGL_PLATFORM", _CUDA_DEVICES)
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    device = first_cuda_device() if kind == "egl" and _EGL_DEVICE not in environment else None
    # -P keeps the script's directory off the path: its files may have the names of libraries.
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
    """Returns the first number in CUDA_VISIBLE_DEVICES; None if unset or a UUID."""
    first = os.environ.get(_CUDA_DEVICES, "").split(",")[0].strip()
    return int(first) if first.isdecimal() else None


@functools.cache
def find() -> Renderer:
    """Returns the renderer that MUJOCO_GL names; if it is unset, EGL, or OSMesa if EGL fails.

    Raises:
      RenderingUnavailableError: if none works. The message names the Debian packages to install.
    """
    with _LOCK:  # `opengl_disabled` temporarily replaces the user's value.
        chosen = os.environ.get(VARIABLE, "").lower()
    if chosen in _OFF:
        raise RenderingUnavailableError(
            f"expected an OpenGL for rendering, got {VARIABLE}={chosen}, which disables it; unset "
            f"{VARIABLE}"
        )
    kinds = (chosen,) if chosen else _KINDS
    reasons = []
    for kind in kinds:
        answer = probe(kind)
        if isinstance(answer, Renderer):
            return answer
        reasons.append(f"{kind}: {answer}")
    raise RenderingUnavailableError(
        f"expected an OpenGL library for off-screen rendering, found none ({'; '.join(reasons)}); "
        f"{install_hint(kinds)}"
    )


def resolve(render: str) -> str:
    """Returns 'fast' or 'exact'.

    Args:
      render: see `PixelConfig.render`.

    Raises:
      RenderingUnavailableError: if it is 'auto', and OpenGL is unavailable on this machine.
    """
    if render != "auto":
        return render
    return "fast" if find().is_software else "exact"


def advice(renderer: Renderer, devices: str = "/dev") -> str:
    """Returns how to render on the machine's GPU if a software renderer is used.

    Args:
      renderer: the renderer that is used.
      devices: directory of the machine's device files.

    Returns:
      One line; "" if the renderer uses a GPU or the machine has none.
    """
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
    """Returns the command that installs the Debian packages of some kinds of OpenGL."""
    lines = [f"'apt-get install {_PACKAGES[kind]}'" for kind in kinds if kind in _PACKAGES]
    return (
        "install it with " + " or ".join(lines)
        if lines
        else f"unset {VARIABLE} to try EGL and OSMesa"
    )


def enable() -> Renderer:
    """Loads OpenGL into this process and into dm_control. Later calls do nothing.

    Returns:
      The renderer.

    Raises:
      RenderingUnavailableError: if OpenGL is unavailable on this machine.
    """
    renderer = find()
    with _LOCK:
        # For child processes and for Gymnasium's MuJoCo environments, which read the variables.
        os.environ[VARIABLE] = renderer.kind
        if renderer.device is not None:
            os.environ[_EGL_DEVICE] = str(renderer.device)
        backend: Any = importlib.import_module("dm_control._render")
        if backend.BACKEND in _OFF:
            # Reloading reads the variable again. It suffices, because dm_control looks up
            # `_render.Renderer` for every context.
            importlib.reload(backend)
        if "make_current" not in vars(backend.Renderer):
            # Imported first: it closes EGL's display at exit, which must follow all contexts.
            library = importlib.import_module(f"mujoco.{renderer.kind}")
            backend.Renderer = _used_by_any_thread(backend.Renderer, renderer.kind, library)
    return renderer


@contextlib.contextmanager
def previous_restored(kind: str, library: Any = None) -> Iterator[Any]:
    """Restores this thread's current context after a `with` block, and yields MuJoCo's module.

    Only for EGL: with OSMesa and GLFW, no context is current afterwards.

    Args:
      kind: the kind of OpenGL that is enabled, `Renderer.kind`.
      library: that module, for use while the interpreter ends and nothing can be imported.
    """
    library = library or importlib.import_module(f"mujoco.{kind}")
    display, *before = _current(library.EGL) if kind == "egl" else [None]
    try:
        yield library
    finally:
        if kind == "egl":
            egl = library.EGL
            if not display:  # No context was current.
                display = egl.eglGetCurrentDisplay()
                before = [egl.EGL_NO_SURFACE, egl.EGL_NO_SURFACE, egl.EGL_NO_CONTEXT]
            if display:
                egl.eglMakeCurrent(display, *before)
        elif kind == "osmesa":  # dm_control uses OSMesa in its own threads.
            library.osmesa.OSMesaMakeCurrent(None, None, library.GL.GL_FLOAT, 0, 0)
        else:
            library.glfw.make_context_current(None)


def _current(egl: Any) -> list[Any]:
    """Returns this thread's display, surfaces and context, which other libraries may have made."""
    surfaces = [egl.eglGetCurrentSurface(kind) for kind in (egl.EGL_DRAW, egl.EGL_READ)]
    return [egl.eglGetCurrentDisplay(), *surfaces, egl.eglGetCurrentContext()]


def _used_by_any_thread(renderer: Any, kind: str, library: Any) -> Any:
    """Returns dm_control's class of contexts, changed so that one is current only while it is used.

    dm_control leaves a context current in the thread that drew with it. No other thread can then
    free it, as the garbage collector and the interpreter's exit do, and it draws nothing once
    other code has made another context current.
    """

    class _Renderer(renderer):
        @contextlib.contextmanager
        def make_current(self) -> Iterator[Any]:
            with self._render_executor.execution_context() as executor, previous_restored(kind):
                executor.call(self._platform_make_current)
                yield executor

        def _free_unconditionally(self) -> None:
            with previous_restored(kind, library):
                super()._free_unconditionally()

    return _Renderer
