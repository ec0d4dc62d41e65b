"""Metrics as JSON lines: `RUN_DIR/metrics/GROUP.jsonl`, one object per row."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from rl_replicator.runs import whole_file


class JsonLines:
    """Writes a file for each group; see `Tracker`."""

    def __init__(self, run_dir: Path, x_axis: str, resume_step: int | None):
        """Touches no file yet.

        Args:
          run_dir: the run's directory.
          x_axis: name of the x-axis.
          resume_step: rows beyond this step are removed, because the run writes them again.
        """
        self._folder = run_dir / "metrics"
        self._x_axis = x_axis
        self._resume_step = resume_step
        self._files: dict[str, TextIO] = {}

    def write(self, group: str, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Appends a row; numbers that are not finite are null."""
        row = {self._x_axis: step, "wall_time": round(seconds, 3)}
        numbers = {name: x if math.isfinite(x) else None for name, x in values.items()}
        self._file(group).write(json.dumps(row | numbers) + "\n")
        self._file(group).flush()

    def discard(self, group: str) -> None:
        """Removes the rows beyond the resume step."""
        self._file(group)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _file(self, group: str) -> TextIO:
        if group not in self._files:
            path = self._folder / f"{group}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                with whole_file.replacing(path) as new:
                    new.write_text("".join(line for line in _lines(path) if self._stays(line)))
            self._files[group] = path.open("a")
        return self._files[group]

    def _stays(self, line: str) -> bool:
        return self._resume_step is None or json.loads(line)[self._x_axis] <= self._resume_step


def _lines(path: Path) -> list[str]:
    """Returns the complete lines; a killed process may have left part of one."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
