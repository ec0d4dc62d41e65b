"""A trial as an actor of Ray Tune, which trains each run in a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ray import tune

from rl_replicator.errors import DISK_STATUS
from rl_replicator.experiments import copies, trial
from rl_replicator.experiments.experiment import Experiment
from rl_replicator.experiments.trial import TrialState
from rl_replicator.processes import output, signals
from rl_replicator.processes.process_group import ProcessGroup
from rl_replicator.runs.run_directory import RunDirectory

# An actor hears nothing while it waits for an evaluation, so it reports at least this often.
_POLL_SECONDS = 0.2
_POLLS = 3
# Exit statuses of a run that was killed or terminated by a user, or by the kernel because memory
# was short.
_KILLED = (-9, *(status for number in signals.ENDING for status in (-number, 128 + number)))
# Variables of a run that the user has not set. Several processes share a GPU, so none may allocate
# all of its memory.
_VARIABLES = {"TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTHONUNBUFFERED": "1"}
# `rl-replicator train` saves and ends within ten seconds of SIGINT on an idle machine.
_SECONDS_TO_END = 120.0
# Variables that Ray sets for its own processes. Another Ray in a run would take them for its own.
_OF_RAY = ("RAY_", "TUNE_", "OMP_NUM_THREADS")

# States that are not about the trial alone: the disk is full, and the runs have no figure by which
# trials are compared.
FULL_DISK, NO_SCORE = "full disk", "no score"


def tune_folder(experiment: Experiment) -> Path:
    """Returns the folder of files that are needed only while the experiment runs."""
    return experiment.run_dir / ".tune"


def end_file(experiment: Experiment, name: str) -> Path:
    """Returns the file that asks the actor of a trial to end its runs, which save."""
    return tune_folder(experiment) / f"{name}.end"


class TrainingTrial(tune.Trainable):
    """Trains the runs of a trial, and reports each evaluation that all of them have reached."""

    def setup(
        self,
        config: dict[str, Any],
        experiment: Experiment,
        share: float,
        cwd: str,
        python_path: str | None,
    ) -> None:
        """Starts nothing yet.

        Args:
          config: `trial` has the `values` of the trial.
          experiment: what to run.
          share: number of processors for a trial.
          cwd: working directory of the command.
          python_path: PYTHONPATH of the command, since Ray may be older than that.
        """
        if python_path is not None:
            os.environ["PYTHONPATH"] = python_path
        self._cwd, self._experiment = cwd, experiment
        os.chdir(cwd)
        (experiment.run_dir / "logs").mkdir(exist_ok=True)
        self._processors, self._lock = _claim(tune_folder(experiment), share)
        self._begin(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Goes over to another trial; a new actor would take seconds to import its modules."""
        os.chdir(self._cwd)  # Ray Tune has changed it.
        self._begin(new_config)
        return True

    def _begin(self, config: dict[str, Any]) -> None:
        log_path = self._experiment.run_dir / "logs" / f"{self.trial_name}.ray.log"
        with log_path.open("ab") as log:
            for stream in (1, 2):  # Otherwise Ray prints it between the lines of the table.
                os.dup2(log.fileno(), stream)
        self._values = self._experiment.written(config["trial"]["values"])
        self._runs = self._experiment.runs(self.trial_name, self._values)
        self._processes: list[RunProcess] = []
        self._num_reported = 0
        self._num_when_killed = -1
        copies.complete(self._folder, [run.path for run in self._runs])

    def step(self) -> dict[str, Any]:
        """Returns the next evaluation, or after half a second the newest one again."""
        for _ in range(_POLLS):
            if end_file(self._experiment, self.trial_name).exists():
                codes = self._end()
                is_done = bool(codes) and not any(codes)  # Before it was asked to end.
                if is_done:
                    self._num_reported = len(trial.evaluations(self._runs))
                return self._result((TrialState.DONE if is_done else TrialState.WAITING).value)
            if self._processes or self._start():
                found = self._look()
                if found is not None:
                    return found
            time.sleep(_POLL_SECONDS)
        return self._result(TrialState.RUNNING.value)

    @property
    def _folder(self) -> Path:
        return self._runs[0].path.parent

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Ends the runs, which save; the next step continues them."""
        self._end()
        found = trial.evaluations(self._runs)
        step = found[-1].steps if found else 0
        folder = copies.snapshot(self._folder, [run.path for run in self._runs], step)
        return {"folder": str(folder), "step": step}

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Copies the runs of another trial; those of this one are there already."""
        source = Path(checkpoint["folder"])
        if source.parent == self._folder:
            return
        copies.begin(self._folder, source, checkpoint["step"], self._values)
        copies.complete(self._folder, [run.path for run in self._runs])

    def cleanup(self) -> None:
        """Ends the runs, if the trial has been stopped between two reports."""
        self._end()

    def _start(self) -> bool:
        """Starts the runs, unless somebody else trains one of them; returns whether they run."""
        if any(RunDirectory(run.path).is_live for run in self._runs):
            return False
        program = [sys.executable, "-P", "-m", self._experiment.module, "train"]
        self._processes = [
            RunProcess([*program, *run.words], run.log, self._processors) for run in self._runs
        ]
        return True

    def _look(self) -> dict[str, Any] | None:
        """Returns what has become of the runs; None for nothing new."""
        codes = [process.poll() for process in self._processes]  # Before their last rows are read.
        found = trial.evaluations(self._runs)
        if any(codes):
            return self._after_failure(codes, len(found))
        has_ended = all(code == 0 for code in codes)
        score = trial.score_of(self._runs[0])
        if score is None and RunDirectory(self._runs[0].path).exists:
            self._end()
            return self._result(NO_SCORE)
        new = found[self._num_reported :]
        # The last evaluation is reported when the runs have ended, and need not be stopped.
        is_last = score is not None and score.end is not None and new and new[0].steps >= score.end
        if new and (has_ended or not is_last):
            self._num_reported += 1
        elif not has_ended:
            return None
        if not found:
            return self._result(TrialState.FAILED.value, "ended without an evaluation")
        is_done = has_ended and self._num_reported >= len(found)
        return self._result((TrialState.DONE if is_done else TrialState.RUNNING).value)

    def _after_failure(self, codes: Sequence[int | None], count: int) -> dict[str, Any] | None:
        """Continues a trial that was killed, unless it was killed at the same evaluation before."""
        failed = [one for one, code in zip(self._processes, codes, strict=True) if code]
        # The most informative failure comes first.
        first = min(failed, key=lambda one: (one.poll() != DISK_STATUS, one.poll() in _KILLED))
        self._end()
        if first.poll() == DISK_STATUS:
            return self._result(FULL_DISK, first.reason())
        if first.poll() in _KILLED and count > self._num_when_killed:
            self._num_when_killed = count
            return None
        return self._result(TrialState.FAILED.value, first.reason())

    def _end(self) -> list[int]:
        """Asks the runs to save and end, and waits for them; returns their exit statuses."""
        for process in self._processes:
            process.interrupt()
        codes = [process.wait() for process in self._processes]
        self._processes = []
        return codes

    def _result(self, state: str, reason: str = "") -> dict[str, Any]:
        score = trial.score_of(self._runs[0])
        found = trial.evaluations(self._runs)[: self._num_reported]
        is_highest_best = score is None or score.is_highest_best
        return {
            "done": state != TrialState.RUNNING.value,
            "training_iteration": len(found),
            "steps": found[-1].steps if found else 0,
            "objective": trial.objective(found, is_highest_best),
            "state": state,
            "reason": reason,
            "figure": score.figure if score else "",
            "is_highest_best": is_highest_best,
            "evaluations": [vars(one) for one in found],
            "values": self._values,
            "origin": copies.origin(self._folder),
        }


class RunProcess:
    """The process of a run. It cannot outlive the thread that starts it."""

    def __init__(self, command: Sequence[str], log: Path, processors: Sequence[int] = ()):
        """Starts the process.

        Args:
          command: the command and its arguments.
          log: file to which the output is appended; its directory is created.
          processors: indices of the processors that it may use; empty for all.
        """
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        defaults = dict(_VARIABLES)
        if processors:  # Otherwise TensorFlow starts threads for all processors of the machine.
            defaults["TF_NUM_INTRAOP_THREADS"] = str(max(1, len(processors) // 2))
        kept = {name: text for name, text in os.environ.items() if not name.startswith(_OF_RAY)}
        with log.open("ab") as log_file:
            self._group = ProcessGroup.start(command, {**defaults, **kept}, log_file)
        if processors:
            os.sched_setaffinity(self._group.pid, processors)

    def poll(self) -> int | None:
        """Returns the exit status, or the negative signal that killed it; None while it runs."""
        return self._group.poll()

    def interrupt(self) -> None:
        """Asks the process to save and end."""
        self._group.send_signal(signal.SIGINT)

    def wait(self) -> int:
        """Waits until the process has ended, and kills it if that takes too long.

        Returns:
          The result of `poll`.
        """
        deadline = time.monotonic() + _SECONDS_TO_END
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self._group.kill()
            time.sleep(_POLL_SECONDS / 2)
        return code

    def reason(self) -> str:
        """Returns one line that describes how it ended: status and last line of the output."""
        how = output.describe_end(self.poll() or 0)
        lines: list[str] = []
        with contextlib.suppress(OSError):  # The log may have been deleted.
            lines = self._log.read_text(errors="replace").strip().splitlines()
        return f"{how}: {lines[-1].strip() if lines else 'no output'} ({self._log})"


def _claim(folder: Path, share: float) -> tuple[Sequence[int], IO[str]]:
    """Takes processors of this machine that no other trial has taken.

    Args:
      folder: folder that all trials share.
      share: number of processors for a trial.

    Returns:
      The indices of the processors, empty for all, and a lock to keep.
    """
    processors = sorted(os.sched_getaffinity(0))
    count = max(1, int(len(processors) / share + 0.01))
    for index in itertools.count():
        lock = (folder / f"{socket.gethostname()}-{index}.lock").open("w")
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            place = index % count
            own = processors[place::count] or [processors[place % len(processors)]]
            return (own if count > 1 else ()), lock
        lock.close()
    raise AssertionError
