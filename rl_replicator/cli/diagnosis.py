"""`rl-replicator doctor`: checks that the installed packages fit each other and this machine.

Other packages add findings: an entry point of the group `rl_replicator.diagnostics` is a function
without arguments that returns an iterable of `Finding`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import NamedTuple

import psutil
from packaging.requirements import Requirement

from rl_replicator.cli import options, packages

GROUP = "rl_replicator.diagnostics"
OK, NOTE, WRONG = "ok", "note", "WRONG"

_DISTRIBUTION = "rl-replicator"
_PYTHON = (3, 11)
_LITTLE_MEMORY, _LITTLE_DISK = 4e9, 5e9


class Finding(NamedTuple):
    """One line of the diagnosis.

    Attributes:
      verdict: OK, NOTE or WRONG.
      subject: what was examined.
      text: what was found.
      advice: what to do; empty if nothing.
    """

    verdict: str
    subject: str
    text: str
    advice: str = ""


@dataclasses.dataclass(frozen=True)
class DoctorOptions:
    """Check versions, devices and rendering; exit with status 1 if something does not fit."""


def doctor(args: Sequence[str]) -> int:
    """Prints one line per finding, with advice if something is wrong."""
    options.parse(DoctorOptions, "rl-replicator doctor", args)
    wrong = 0
    for finding in examine():
        wrong += finding.verdict == WRONG
        advice = f"; {finding.advice}" if finding.advice else ""
        print(f"{finding.verdict:<5} {finding.subject}: {finding.text}{advice}", flush=True)
    told = f"Does not fit: {wrong}. Lines marked {WRONG} say what to do." if wrong else "All fits."
    print(f"\n{told}")
    return 1 if wrong else 0


def examine() -> Iterator[Finding]:
    """Yields all findings, the quick ones first. Imports TensorFlow."""
    yield _python()
    yield from _packages()
    yield from _machine()
    yield from _tensorflow()
    yield from _registered()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info[:2] == _PYTHON:
        return Finding(OK, "Python", version)
    return Finding(WRONG, "Python", version, "use 3.11, for which dm-reverb 0.14 is built")


def _packages() -> Iterator[Finding]:
    """Compares direct dependencies with their pins, and finds a package that hides this one."""
    required = packages.requirements(_DISTRIBUTION)
    if not required:
        yield Finding(
            WRONG, _DISTRIBUTION, "not installed", "'pip install --no-deps -e .' in its directory"
        )
    for requirement in required:
        yield _package(requirement)
    if (version := packages.installed("dm-launchpad")) is not None:
        yield Finding(
            WRONG,
            "dm-launchpad",
            f"{version}; its package 'launchpad' hides this project's",
            "pip uninstall dm-launchpad",
        )


def _package(requirement: Requirement) -> Finding:
    name, version = requirement.name, packages.installed(requirement.name)
    install = f"pip install '{name}{requirement.specifier}'"
    if version is None:
        return Finding(WRONG, name, "not installed", install)
    if requirement.specifier.contains(version, prereleases=True):
        return Finding(OK, name, version)
    return Finding(WRONG, name, f"{version}, tested with {requirement.specifier}", install)


def _machine() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    yield Finding(OK, "processor cores", str(cores))
    memory = psutil.virtual_memory()
    text = f"{memory.available / 1e9:.1f} GB free of {memory.total / 1e9:.1f} GB"
    if memory.available < _LITTLE_MEMORY:
        yield Finding(NOTE, "memory", text, "a smaller replay (--agent.replay.*) needs less")
    else:
        yield Finding(OK, "memory", text)
    free = shutil.disk_usage(".").free
    text = f"{free / 1e9:.1f} GB free here"
    if free < _LITTLE_DISK:
        yield Finding(NOTE, "disk", text, "checkpoints hold the replay; give --run-dir elsewhere")
    else:
        yield Finding(OK, "disk", text)


def _tensorflow() -> Iterator[Finding]:
    """Lists the devices; checks that TensorFlow uses its fast CPU kernels."""
    try:
        packages.check_numpy()  # TensorFlow would print a hundred lines.
        tf = importlib.import_module("tensorflow")
    except Exception as error:  # Incompatible binaries can raise anything.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        yield Finding(WRONG, "TensorFlow", f"cannot be imported: {lines[0]}", "see the lines above")
        return
    # Imported here, because it imports TensorFlow.
    from rl_replicator.layers import precision

    devices = [device.name.split(":", 1)[1] for device in tf.config.list_physical_devices()]
    yield Finding(OK, "TensorFlow devices", ", ".join(devices))
    if not precision.has_onednn():
        variable = "TF_ENABLE_ONEDNN_OPTS"
        if os.environ.get(variable) == "0":
            text = "TensorFlow computes without it, and convolutions and bfloat16 are slow"
            yield Finding(WRONG, "oneDNN", text, f"unset {variable}")
        else:
            text = "TensorFlow uses it by itself only on processors with AVX512_VNNI or AMX"
            yield Finding(NOTE, "oneDNN", text, f"{variable}=1 may be faster")
    has_gpu = any(name.startswith("GPU") for name in devices)
    if shutil.which("nvidia-smi") and not has_gpu:
        yield Finding(
            NOTE,
            "GPU",
            "this machine has an NVIDIA driver, but TensorFlow sees no GPU",
            "pip install 'rl-replicator[cuda]'",
        )
    if not tf.sysconfig.get_build_info().get("is_cuda_build") and has_gpu:
        yield Finding(NOTE, "GPU", "this TensorFlow is built without CUDA")


def _registered() -> Iterator[Finding]:
    """Yields the findings of the checks that other packages have registered."""
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: entry.name):
        yield from entry.load()()
