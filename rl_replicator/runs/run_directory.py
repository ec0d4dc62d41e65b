"""The directory of a run: its config, the paths of its files, and whether it may be continued.

Its files:

    RUN_DIR/config.json      the settings; `identity` holds those that must not change on resume
    RUN_DIR/metrics/*.csv    one table per group of metrics
    RUN_DIR/tensorboard/     the same for TensorBoard
    RUN_DIR/checkpoints/     the newest checkpoints
    RUN_DIR/best/            the checkpoint with the best evaluation, if the run keeps one
    RUN_DIR/events.csv       starts, ends, and restarted nodes
    RUN_DIR/evaluation.png   the plot of the evaluations
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_replicator.checkpoints.checkpointer import Checkpointer, check_local
from rl_replicator.errors import UsageError, cannot_write
from rl_replicator.runs import atomic_file
from rl_replicator.runs.plain_data import as_stored, to_plain

# The value of a setting that is determined at the start of a run.
AUTO = "auto"
# The files above.
NAMES = (
    *("config.json", "metrics", "tensorboard", "checkpoints", "best"),
    *("events.csv", "evaluation.png"),
)
# The keys that a config may have.
CONFIG_KEYS = ("trainable", "identity", "options", "score")
# Other things whose directory has a config: collections, which hold many runs.
SWEEP, SUITE = "sweep", "suite"
# Options of a collection's runs that may change when it is continued: the collection sets the first
# ones for each run, and the others do not change what is learned.
FREE_OPTIONS = (
    *("seed", "run_dir", "resume", "checkpoint_seconds", "keep_checkpoints", "launch", "address"),
    *("open_ports", "env_timeout", "evaluation_seconds", "profile_steps", "track"),
    *("video", "video_every"),
)
# Options that set the length of a run.
LENGTHS = ("steps", "epochs")

_CONFIG = "config.json"
_LOCK = ".lock"
# How often and after how many seconds a lock is tried again: `is_live` takes it for a moment.
_TRIES, _SECONDS_BETWEEN_TRIES = 5, 0.05


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A run's directory.

    Attributes:
      path: the directory, on a local or mounted file system.

    Raises:
      ConfigError: if `path` is a URL.
    """

    path: Path

    def __post_init__(self) -> None:
        check_local(self.path)

    @property
    def name(self) -> str:
        """Its name, also if the path is "."; for a symbolic link, the name of the link itself."""
        return Path(os.path.abspath(self.path)).name

    @property
    def checkpoints(self) -> Path:
        """Directory of the newest checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Directory of the checkpoint with the best evaluation."""
        return self.path / "best"

    def checkpointer(self, best: bool = False) -> Checkpointer:
        """Returns the checkpointer that restores the newest checkpoint, or the best one.

        Args:
          best: whether to restore the best one.

        Raises:
          UsageError: if there is none.
          CheckpointError: if its manifest cannot be read.
        """
        checkpointer = Checkpointer(self.best if best else self.checkpoints)
        if checkpointer.latest() is None:
            raise UsageError(
                f"expected a checkpoint in {self.best if best else self.checkpoints}, found none "
                "yet; train for longer (the best one is kept after the first evaluation)"
            )
        return checkpointer

    @property
    def plot(self) -> Path:
        """Default path of the plot of the evaluations."""
        return self.path / "evaluation.png"

    @property
    def exists(self) -> bool:
        """Whether a run has begun here.

        Raises:
          UsageError: if the directory cannot be read.
        """
        try:
            return (self.path / _CONFIG).exists()
        except OSError as error:
            raise UsageError(
                f"cannot read the run directory {self.path}: {error}; choose another --run-dir"
            ) from None

    def config(self) -> dict[str, Any]:
        """Reads what `describe` wrote.

        Raises:
          UsageError: if this is not the directory of a run.
        """
        path = self.path / _CONFIG
        try:
            config = json.loads(path.read_text())
        except FileNotFoundError:
            raise UsageError(
                f"expected the directory of a run, but there is no {path}; 'rl-replicator train' "
                "makes one"
            ) from None
        except (OSError, ValueError) as error:
            raise UsageError(f"expected a run's settings in {path}, got {error}") from None
        groups = (
            [config.get("identity"), config.get("options", {})]
            if isinstance(config, dict)
            else [None]
        )
        if not all(isinstance(group, dict) for group in groups):
            raise UsageError(f"expected a run's settings in {path}, got another kind of file")
        return config

    @property
    def collection(self) -> str:
        """`SWEEP` or `SUITE` if the directory holds many runs and is not a run itself; else ""."""
        try:
            kind = self.config().get("trainable")
        except UsageError:
            return ""
        return kind if kind in (SWEEP, SUITE) else ""

    def check_single(self) -> None:
        """Checks that this is the directory of a single run.

        Raises:
          UsageError: if it is the directory of a sweep or a suite.
        """
        if self.collection:
            found = runs_within(self.path)
            example = f", such as {found[0]}" if found else ""
            raise UsageError(
                f"expected the directory of one run, got {self.path}, which holds a "
                f"{self.collection}; name one of its runs{example}"
            )

    def check_visible(self) -> None:
        """Checks that this machine sees the directory of a run that has begun.

        Raises:
          UsageError: if it does not.
        """
        if not self.exists:
            raise UsageError(
                f"expected the run's directory {self.path} on every machine, but "
                f"{socket.gethostname()} has none; pass a --run-dir on a file system that all share"
            )

    @contextlib.contextmanager
    def opened(
        self, trainable: str, identity: Mapping[str, Any], free: Collection[str] = ()
    ) -> Iterator[bool]:
        """Creates the directory or opens that of the same run, and locks out other processes.

        Args:
          trainable: name of what is trained.
          identity: the settings that distinguish this run from others, as plain data. A setting
            that is "auto" matches any value.
          free: settings of `identity` that may change on resume, as dotted names.

        Yields:
          Whether the run existed before.

        Raises:
          UsageError: if another run or other files are in the directory, another process trains in
            it, or it cannot be written. Nothing is changed then.
        """
        exists = self.exists
        if exists:
            _check_same(self.path, self.config()["identity"], _stored(trainable, identity), free)
        elif os.path.lexists(self.path) and not self._is_empty():
            raise UsageError(
                f"expected an empty or new directory, or that of a run, got {self.path}, which "
                "is a file, a link to nothing, or has other files in it; choose another --run-dir"
            )
        with self.locked():
            yield exists

    def describe(
        self,
        trainable: str,
        identity: Mapping[str, Any],
        options: Mapping[str, Any],
        score: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the run's config atomically.

        Args:
          trainable: name of what is trained.
          identity: see `opened`.
          options: all settings as requested, so that another run can start from them.
          score: the figure that measures how good the run is: a `Score` as plain data, or None.

        Raises:
          UsageError: if it cannot be written.
        """
        config = {
            "trainable": trainable,
            "identity": {"trainable": trainable, **identity},
            "options": options,
            **({} if score is None else {"score": score}),
        }
        try:
            with atomic_file.replacing(self.path / _CONFIG) as new:
                new.write_text(json.dumps(config, indent=2) + "\n")
        except OSError as error:
            raise self._unwritable(error) from None

    @property
    def is_live(self) -> bool:
        """Whether a process trains in this directory now."""
        try:
            with (self.path / _LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks out other processes that would train here.

        Raises:
          UsageError: if another process trains here, the directory cannot be written, or its file
            system has no locks.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            if not self._take(lock):
                raise UsageError(
                    f"another process trains in {self.path}; wait for it, or choose another "
                    "--run-dir"
                )
            try:
                yield
            finally:
                # Closing is not enough, because forked processes hold the same lock.
                fcntl.flock(lock, fcntl.LOCK_UN)
        finally:
            os.close(lock)

    def _take(self, lock: int) -> bool:
        """Takes the lock; returns False if another process has it."""
        for _ in range(_TRIES):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                time.sleep(_SECONDS_BETWEEN_TRIES)
            except OSError as error:
                raise UsageError(
                    f"expected a file system with locks (flock) for the run directory {self.path}, "
                    f"got {error}; choose a --run-dir on another one"
                ) from None
        return False

    def _is_empty(self) -> bool:
        return self.path.is_dir() and all(path.name == _LOCK for path in self.path.iterdir())

    def _unwritable(self, error: OSError) -> UsageError:
        return cannot_write(f"cannot write to the run directory {self.path}: {error}", error)


def _stored(trainable: str, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an identity in the form of `RunDirectory.config`."""
    return to_plain({"trainable": trainable, **identity})


def _check_same(
    path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any], free: Collection[str]
) -> None:
    differences = list(_differences("", there, wanted, free))
    if differences:
        kind = there.get("trainable")
        kind = kind if kind in (SWEEP, SUITE) else "run"
        raise UsageError(
            f"{path} holds a {kind} with other settings ({'; '.join(differences)}); use its "
            "settings or another --run-dir"
        )


def _differences(
    prefix: str, old: Mapping[str, Any], new: Mapping[str, Any], free: Collection[str]
) -> Iterator[str]:
    """Yields what distinguishes two identities, in words."""
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(f"{prefix}{key}.", a, b, free)
        elif f"{prefix}{key}" in free or b == AUTO:  # "auto" adopts the value of the run.
            continue
        elif a != b and (a == a or b == b):  # NaN differs from itself.
            was, now = (repr(one[key]) if key in one else "absent" for one in (old, new))
            yield f"{prefix}{key} was {was} and is now {now}"


def adopted(config: Any, stored: Mapping[str, Any]) -> Any:
    """Returns a config with the values of its run in place of those that are "auto".

    Args:
      config: a config dataclass. Settings within its dataclasses keep their values.
      stored: its part of the identity of the run, as plain data; empty for a new run.
    """
    names = [field.name for field in dataclasses.fields(config) if field.init]
    open_ones = [name for name in names if getattr(config, name) == AUTO and name in stored]
    return dataclasses.replace(config, **{name: stored[name] for name in open_ones})


def settled(config: Any, stored: Mapping[str, Any]) -> Any:
    """Returns the config of a learner's run, with nothing left to "auto".

    Args:
      config: a config dataclass, as it was asked for. Its method `on_this_machine`, if there is
        one, replaces settings that are still "auto".
      stored: see `adopted`.

    Raises:
      ConfigError: if it could not be restored from the directory of its run.
    """
    config = adopted(config, stored)
    if hasattr(config, "on_this_machine"):
        config = config.on_this_machine()
    return as_stored(config)


def options_used(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a run, with the determined values in place of those that are "auto".

    Args:
      config: the config from `RunDirectory.config`.
    """
    identity, options = config["identity"], config.get("options", {})
    # The settings of a learner are not a group of its options.
    decided = {"agent": identity.get("agent"), "frame": identity.get("pixels")}
    decided["action_repeat"] = identity.get("action_repeat")
    decided |= identity.get("config", {})
    return {
        name: value if decided.get(name) is None else decided[name]
        for name, value in options.items()
    }


def folder_name(text: str) -> str:
    """Converts a name to a part of a folder's name.

    Args:
      text: any name; characters other than letters, digits, "_", "-" and "." become "-".
    """
    return re.sub(r"[^\w.-]+", "-", text)


@contextlib.contextmanager
def choose(
    root: Path,
    base: str,
    trainable: str,
    identity: Mapping[str, Any],
    run_dir: Path | None,
    resume: bool,
    free: Collection[str] = (),
) -> Iterator[RunDirectory]:
    """Chooses the directory that the options of a run request.

    The directory of a new run without `--run-dir` is created immediately, so that runs that start
    at the same time have different ones. It is removed if the run raises while it is still empty.

    Args:
      root: directory of the runs of this kind.
      base: first part of the name of a new run; a number follows.
      trainable: name of what is trained.
      identity: see `RunDirectory.opened`.
      run_dir: the option `--run-dir`.
      resume: the option `--resume`: continue the run in `run_dir`, or else the newest run under
        `root` of this identity.
      free: see `RunDirectory.opened`.

    Yields:
      The directory.

    Raises:
      UsageError: if there is no run to resume, or the directory cannot be made.
    """
    if run_dir is not None:
        run = RunDirectory(run_dir)
        if resume:
            run.config()  # Raises if there is no run.
        yield run
    elif resume:
        found = _newest(root, _stored(trainable, identity), free)
        if found is None:
            raise UsageError(
                f"--resume: expected a run of {base} with these settings under {root}, found none; "
                "leave --resume out, or name the run with --run-dir"
            )
        yield found
    else:
        made = [folder for folder in (root, *root.parents) if not os.path.exists(folder)]
        run = _new(root, base)
        try:
            yield run
        except BaseException:
            for folder in (run.path, *made):
                with contextlib.suppress(OSError):  # It is not empty.
                    folder.rmdir()
            raise


def _newest(root: Path, wanted: Mapping[str, Any], free: Collection[str]) -> RunDirectory | None:
    """Returns the newest run of an identity under `root`; None if there is none."""
    for run in runs(root):
        with contextlib.suppress(UsageError):  # A run whose config cannot be read.
            if not any(_differences("", run.config()["identity"], wanted, free)):
                return run
    return None


def _new(root: Path, base: str) -> RunDirectory:
    """Creates a directory with the first free number."""
    number = 1
    while True:
        run = RunDirectory(root / f"{base}-{number}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            run.path.mkdir()
            return run
        except OSError as error:
            if not os.path.lexists(run.path):
                raise run._unwritable(error) from None
        number += 1


def runs_within(folder: Path) -> list[Path]:
    """Returns the directories of all runs in a folder, a suite or a sweep, sorted; [] for a run.

    They lie in the folder or one level further down, as in `runs` and in a sweep.
    """
    with contextlib.suppress(UsageError):  # It cannot be read.
        if RunDirectory(folder).exists and not RunDirectory(folder).collection:
            return []  # Even if it contains others, such as copies.
    inner = [run.path for run in runs(folder)]
    further = {path.parents[1] for path in folder.glob(f"*/*/{_CONFIG}")}.difference(inner)
    inner += [run.path for path in further for run in runs(path)]
    return [run for path in sorted(inner) for run in runs_within(path) or [path]]


def runs(root: Path) -> list[RunDirectory]:
    """Returns the runs directly under `root` that can be read, the newest first."""
    check_local(root)
    try:
        folders = list(root.iterdir())
    except OSError:
        return []
    times = {}
    for path in folders:
        with contextlib.suppress(OSError):  # It is not a run, or not readable.
            times[path] = (path / _CONFIG).stat().st_mtime
    return [RunDirectory(path) for path in sorted(times, key=lambda p: times[p], reverse=True)]
