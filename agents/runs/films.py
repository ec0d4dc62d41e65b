"""Films of a run, each made by a separate process from the newest checkpoint."""

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from rl_replicator.checkpoints import Checkpointer
from rl_replicator.cli.main import BAD_INPUT, ERROR_PREFIX
from rl_replicator.runs.run_directory import RunDirectory

_LOG = logging.getLogger("agents")
_FOLDER = "films"
_NICENESS = 10


def video_command(run_dir: Path, output: Path | None = None) -> list[str]:
    """Returns the command that films an episode of the newest checkpoint.

    Args:
      run_dir: the run's directory.
      output: the file. Default: that of the command.
    """
    command = [sys.executable, "-m", "rl_replicator.cli.main", "video", str(run_dir)]
    return command if output is None else [*command, "--out", str(output)]


def film_at_the_end(
    run: RunDirectory, command: Callable[[Path], Sequence[str]] = video_command
) -> None:
    """Films an episode. If that fails, it only warns, because the run is complete.

    A separate process is independent of the TensorFlow and OpenGL state of this one.

    Args:
      run: the run to film.
      command: directory of the run -> command.
    """
    try:
        done = subprocess.run(
            list(command(run.path)), stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        _LOG.warning("no video was made: %s", error)
        return
    if done.returncode == BAD_INPUT:
        _LOG.warning("no video was made: %s", _reason(done.stderr))
    else:
        sys.stderr.write(done.stderr)


def _reason(errors: str) -> str:
    *_, reason = errors.strip().splitlines() or ["it gave no reason"]
    return reason.removeprefix(ERROR_PREFIX)


class Films:
    """Starts a film at each multiple of `every` steps of a run, unless one is being made.

    The films are `films/STEPS.mp4` in the run's directory, where STEPS are the environment steps of
    the run when the film was started. They show the policy of the newest checkpoint. A film that
    fails is not tried again, and the run goes on. If nothing can be rendered, or a film cannot be
    started, it warns once and starts no further films.
    """

    def __init__(
        self,
        run: RunDirectory,
        every: int | None,
        command: Callable[[Path, Path], Sequence[str]] = video_command,
    ):
        """Starts nothing yet.

        Args:
          run: the run to film.
          every: environment steps from one film to the next; None for no films.
          command: (directory of the run, file to write) -> command.
        """
        self._run = run
        self._every = every
        self._command = command
        self._due: int | None = None
        self._process: subprocess.Popen | None = None
        self._output = run.path / _FOLDER  # Of that process.
        self._errors: IO[str] | None = None  # The films' error output, from the first one on.

    def tick(self, environment_steps: int) -> None:
        """Starts the next film if it is due; called repeatedly.

        Args:
          environment_steps: the steps of the run.
        """
        if self._is_filming() or self._every is None:
            return
        following = (environment_steps // self._every + 1) * self._every
        if self._due is None:  # A continued run has been filmed up to here.
            self._due = following
        if environment_steps < self._due or Checkpointer(self._run.checkpoints).latest() is None:
            return
        self._due = following
        try:
            self._start(environment_steps)
        except OSError as error:
            self._give_up(str(error))

    def _start(self, environment_steps: int) -> None:
        """Starts a film.

        Raises:
          OSError: if it cannot be started.
        """
        self._output = output = self._run.path / _FOLDER / f"{environment_steps:09d}.mp4"
        output.parent.mkdir(exist_ok=True)
        if self._errors is None:
            # A film that blocks on a full pipe, which is not read, would never end.
            self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see close
        self._process = subprocess.Popen(
            list(self._command(self._run.path, output)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            # TensorFlow would take the memory of the learner's GPUs.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            process_group=0,  # Ctrl-C ends the run, which ends the film.
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, _NICENESS)

    def close(self) -> None:
        """Ends a film that is being made, with a warning, and removes what is left of it."""
        if self._process is not None and self._is_filming():
            self._process.terminate()
            self._process.wait()
            if not self._output.exists():  # A film gets its name once it is complete.
                _LOG.warning(
                    "the film at %s steps was not complete at the end of the run; it is left out",
                    f"{int(self._output.stem):,}",
                )
        folder = self._run.path / _FOLDER
        for partial in folder.glob(".*.partial.mp4"):
            partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # The folder is missing, or has films.
            folder.rmdir()
        if self._errors is not None:
            self._errors.close()

    def _give_up(self, reason: str) -> None:
        _LOG.warning("no films are made: %s", reason)
        self._every = None

    def _is_filming(self) -> bool:
        if self._process is None or self._errors is None:
            return False
        if self._process.poll() is None:
            return True
        self._errors.seek(0)
        errors = self._errors.read()
        if self._process.returncode == BAD_INPUT:
            self._give_up(_reason(errors))
        else:
            sys.stderr.write(errors)
        self._errors.seek(0)
        self._errors.truncate()
        self._process = None
        return False
