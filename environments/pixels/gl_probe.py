"""A script that tests the OpenGL kind in MUJOCO_GL: `python gl_probe.py [CUDA_DEVICE]`.

Prints JSON: the `name` of the driver, and the index of the EGL `device` that is CUDA_DEVICE, or
null if there is none or the argument is missing. It runs in its own process, because a driver may
crash or hang.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

_EGL_CUDA_DEVICE = 0x323A  # EGL_CUDA_DEVICE_NV of the extension EGL_NV_device_cuda.


def egl_device_of(cuda_device: int) -> int | None:
    """Returns the index of the EGL device of a CUDA device; None if no driver reports it."""
    from mujoco.egl import egl_ext

    address = egl_ext.eglGetProcAddress("eglQueryDeviceAttribEXT")
    if not address:
        return None
    query = ctypes.CFUNCTYPE(
        egl_ext.EGLBoolean, egl_ext.EGLDeviceEXT, egl_ext.EGLint, ctypes.POINTER(ctypes.c_ssize_t)
    )(address)
    for index, device in enumerate(egl_ext.eglQueryDevicesEXT()):
        ordinal = ctypes.c_ssize_t(-1)
        if query(device, _EGL_CUDA_DEVICE, ordinal) and ordinal.value == cuda_device:
            return index
    return None


def main() -> None:
    """Opens a small context and prints its driver."""
    device = egl_device_of(int(sys.argv[1])) if len(sys.argv) > 1 else None
    if device is not None:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = str(device)
    from dm_control import _render  # Importing it opens the EGL device.
    from OpenGL import GL

    context = _render.Renderer(64, 64)
    with context.make_current() as call:
        name = call.call(GL.glGetString, GL.GL_RENDERER)
    context.free()
    print(json.dumps({"name": name.decode(), "device": device}))


if __name__ == "__main__":
    main()
