"""How the processes of a group are started, and the resources that they may use."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping

# Environment variables that numeric libraries read when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


@dataclasses.dataclass(frozen=True)
class PythonProcess:
    """Launch configuration of one group: a value of `local_resources`.

    It applies to each node of the group. Threads share one process, so they ignore it.

    Attributes:
      args: absl flags for the processes of the group, over those of the launcher. Text is parsed as
        on a command line.
      env: Environment variables, set before anything is imported in the process.
      interpreter: Python executable; the launcher's if empty. Ray always uses its own.
      cpus: CPUs that Ray reserves for the node; processes only check that the machine has them.
      gpus: GPUs that the node sees, whole ones or a part of one; 0 hides all. None is 0 on Ray, and
        leaves the environment unchanged elsewhere.
      threads: Threads of a numeric library, such as OpenMP's or TensorFlow's pool; None for the
        library's default.
      fresh_interpreter: True to start a new Python interpreter for each node, which imports
        everything itself, instead of forking a process that has already done so.
    """

    args: Mapping[str, str | int | float | bool] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    interpreter: str = ""
    cpus: float = 0.0
    gpus: float | None = None
    threads: int | None = None
    fresh_interpreter: bool = False

    def __post_init__(self) -> None:
        gpus = self.gpus or 0.0
        if self.cpus < 0 or gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ValueError(
                f"cpus={self.cpus:g}, gpus={gpus:g}: expected cpus >= 0, and gpus a whole number "
                "or a part of one"
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads={self.threads}: expected a positive number, or None")

    @property
    def absolute_interpreter_path(self) -> str:
        """Path of the Python interpreter of the nodes."""
        return self.interpreter or sys.executable

    def environment(self) -> dict[str, str]:
        """Returns `env` as text, after the variables that `threads` stands for."""
        threads = {} if self.threads is None else dict.fromkeys(THREAD_VARIABLES, self.threads)
        return {str(name): str(value) for name, value in {**threads, **self.env}.items()}
