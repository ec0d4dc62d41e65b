"""How the processes of one group are started."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class PythonProcess:
    """Launch configuration of one group: a value of `local_resources`.

    Attributes:
      args: absl flags for the processes of the group, over those of the launcher.
      env: Environment variables, set before anything is imported in the process.
      interpreter: Python executable; the launcher's where empty.
    """

    args: Mapping[str, str | int | float | bool] = dataclasses.field(default_factory=dict)
    env: Mapping[str, str | int | float] = dataclasses.field(default_factory=dict)
    interpreter: str = ""

    @property
    def absolute_interpreter_path(self) -> str:
        return self.interpreter or sys.executable
