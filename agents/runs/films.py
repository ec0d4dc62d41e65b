"""Films of a run, each made by a separate process from the newest checkpoint."""

import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli.main import ERROR_PREFIX
from rl_replicator.processes import gpus
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")
_FOLDER = "films"
_NICENESS = 10
# What Python prints about the error of a destructor, which follows from another one.
_IGNORED = re.compile(r"^Exception ignored in: .*\n(Traceback .*\n( .*\n)*.*\n?)?", re.MULTILINE)
# (directory of the run, file to write) -> command.
Command = Callable[[Path, Path], Sequence[str]]


def video_command(run_dir: Path, out: Path) -> list[str]:
    """Returns the command that films an episode of the newest checkpoint."""
    words = ["video", str(run_dir), "--out", str(out)]
    # -P keeps the working directory off the path: its files may have the names of libraries.
    return [sys.executable, "-P", "-m", "rl_replicator.cli.main", *words]


def film_at_the_end(run: RunDirectory, command: Command = video_command) -> None:
    """Films an episode. If that fails, it only warns, because the run is complete.

    Args:
      run: the run to film.
      command: see `Films`.
    """
    try:
        failure = _Film(command(run.path, run.path / "evaluation.mp4")).failure()
    except OSError as error:
        failure = str(error)
    if failure is not None:
        _LOG.warning("no video was made: %s", failure)


class _Film:
    """An episode that a process films: TensorFlow and OpenGL of this one are in use."""

    def __init__(self, command: Sequence[str], **how: Any):
        """Starts the process.

        Raises:
          OSError: if it cannot be started.
        """
        # A film that blocks on a full pipe, which is not read, would never end.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see failure
        # TensorFlow would take the memory of the learner's GPUs. Without any, the variable stays as
        # it is, because robosuite reads it, too, and accepts no empty list.
        env = {**os.environ, **({gpus.VISIBLE: ""} if gpus.visible() else {})}
        self.process = subprocess.Popen(list(command), stderr=self._errors, env=env, **how)

    def failure(self) -> str | None:
        """Waits for the end; returns the reason of a failure in one line, or None."""
        status = self.process.wait()
        with self._errors as errors:
            errors.seek(0)
            lines = _IGNORED.sub("", errors.read()).strip().splitlines()
        *_, last = lines or [f"it ended with status {status}"]
        return last.removeprefix(ERROR_PREFIX) if status else None


class Films:
    """Starts a film at each multiple of `every` steps of a run, unless one is being made.

    The films are `films/STEPS.mp4` in the run's directory, where STEPS are the environment steps of
    the run when the film was started. They show the policy of the newest checkpoint. If a film
    fails, it warns in one line and starts no further films; the run goes on.
    """

    def __init__(self, run: RunDirectory, every: int | None, command: Command = video_command):
        """Starts nothing yet.

        Args:
          run: the run to film.
          every: environment steps from one film to the next; None for no films.
          command: (directory of the run, file to write) -> command.
        """
        self._run = run
        self._folder = run.path / _FOLDER
        self._every = every
        self._command = command
        self._due: int | None = None
        self._film: _Film | None = None
        self._started_at = 0

    def tick(self, environment_steps: int) -> None:
        """Starts the next film if it is due; called repeatedly.

        Args:
          environment_steps: the steps of the run.
        """
        if self._film is not None and self._film.process.poll() is not None:
            self._give_up(self._film.failure())
            self._film = None
        if self._film is not None or self._every is None:
            return
        following = (environment_steps // self._every + 1) * self._every
        if self._due is None:  # A continued run has been filmed up to here.
            self._due = following
        if environment_steps < self._due or Checkpointer(self._run.checkpoints).is_empty:
            return
        self._due, self._started_at = following, environment_steps
        try:
            self._folder.mkdir(exist_ok=True)
            command = self._command(self._run.path, self._file)
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            # A group of its own: Ctrl-C ends the run, which ends the film.
            self._film = _Film(command, process_group=0, **quiet)
            os.setpriority(os.PRIO_PROCESS, self._film.process.pid, _NICENESS)
        except OSError as error:
            self._give_up(str(error))

    def close(self) -> None:
        """Ends a film that is being made, with a warning, and removes what is left of it."""
        if self._film is not None:
            self._film.process.terminate()
            self._film.failure()
            if not self._file.exists():  # A film gets its name once it is complete.
                _LOG.warning(
                    "the film at %s steps was not complete at the end of the run; it is left out",
                    f"{self._started_at:,}",
                )
        for partial in self._folder.glob(".*.partial.mp4"):
            partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The folder is missing, or has films.
            self._folder.rmdir()

    @property
    def _file(self) -> Path:
        return self._folder / f"{self._started_at:09d}.mp4"

    def _give_up(self, reason: str | None) -> None:
        if reason is not None:
            _LOG.warning("no further films are made: %s", reason)
            self._every = None
