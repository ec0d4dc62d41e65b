"""The directory of a run: its config, where its files are, and whether it may be continued.

RUN_DIR/config.json      what was asked for; `identity` is what may not change on resume
RUN_DIR/metrics/*.csv    one table per group of figures
RUN_DIR/tensorboard/     the same for TensorBoard
RUN_DIR/checkpoints/     the newest checkpoints
RUN_DIR/best/            the checkpoint with the best evaluation, where there is such a thing
RUN_DIR/return.png, evaluation.mp4
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_replicator.errors import UsageError

_CONFIG = "config.json"
_NEW_CONFIG = "config.json.new"
_LOCK = ".lock"


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """A run's directory.

    Attributes:
      path: where it is.
    """

    path: Path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints go."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """Where the checkpoint with the best evaluation goes."""
        return self.path / "best"

    @property
    def plot(self) -> Path:
        """The figure of the returns."""
        return self.path / "return.png"

    @property
    def video(self) -> Path:
        """The film of an evaluation episode."""
        return self.path / "evaluation.mp4"

    def config(self) -> dict[str, Any]:
        """What `describe` wrote.

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
        if not isinstance(config, dict) or "identity" not in config:
            raise UsageError(f"expected a run's settings in {path}, got another kind of file")
        return config

    def check_visible(self) -> None:
        """Refuses a machine that does not see the directory of a run that goes on.

        Raises:
          UsageError: it does not.
        """
        if not (self.path / _CONFIG).exists():
            raise UsageError(
                f"expected the run's directory {self.path} on every machine, but "
                f"{socket.gethostname()} has none; pass a --run-dir on a file system that all share"
            )

    @contextlib.contextmanager
    def opened(self, trainable: str, identity: Mapping[str, Any]) -> Iterator[bool]:
        """Makes the directory, or takes up the same run, and keeps other processes out of it.

        Args:
          trainable: name of what is trained.
          identity: settings that make it this run and no other, as plain data.

        Yields:
          Whether the run was there already.

        Raises:
          UsageError: another run is there, or other files; a process trains in it; or it cannot be
            written. Nothing is changed then.
        """
        exists = (self.path / _CONFIG).exists()
        if exists:
            wanted = json.loads(json.dumps({"trainable": trainable, **identity}))
            _check_same(self.path, self.config()["identity"], wanted)
        elif self._has_other_files():
            raise UsageError(
                f"expected an empty or new directory, or that of a run, got {self.path} with other "
                "files in it; choose another --run-dir"
            )
        with self._locked():
            yield exists

    def describe(
        self, trainable: str, identity: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Writes the run's config, in one move.

        Args:
          trainable: as in `opened`.
          identity: as there.
          options: all settings, for the reader.

        Raises:
          UsageError: it cannot be written.
        """
        identity = {"trainable": trainable, **identity}
        config = {"trainable": trainable, "identity": identity, "options": options}
        new = self.path / _NEW_CONFIG
        try:
            new.write_text(json.dumps(config, indent=2) + "\n")
            os.replace(new, self.path / _CONFIG)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            raise self._unwritable(error) from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"another process trains in {self.path}; wait for it, or choose another "
                    "--run-dir"
                ) from None
            yield
        finally:
            os.close(lock)

    def _has_other_files(self) -> bool:
        if not self.path.is_dir():
            return self.path.exists()
        return any(path.name not in (_LOCK, _NEW_CONFIG) for path in self.path.iterdir())

    def _unwritable(self, error: OSError) -> UsageError:
        return UsageError(f"cannot write to the run directory {self.path}: {error}")


def _check_same(path: Path, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differences = [
        f"{name} was {old!r} and is now {new!r}"
        for name, old, new in _differences("", there, wanted)
    ]
    if differences:
        raise UsageError(
            f"{path} holds a run with other settings ({'; '.join(differences)}); use its settings "
            "or another --run-dir"
        )


def _differences(
    prefix: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for key in sorted(set(old) | set(new)):
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            yield from _differences(f"{prefix}{key}.", a, b)
        elif a != b:
            yield f"{prefix}{key}", a, b


def from_plain(kind: type, plain: Mapping[str, Any]) -> Any:
    """A frozen config dataclass, as `dataclasses.asdict` and JSON have left it.

    Args:
      kind: the dataclass; fields may be dataclasses and tuples in turn.
      plain: what `RunDirectory.config` gave for it.

    Returns:
      An instance of `kind`.

    Raises:
      UsageError: if the file has a setting that `kind` does not have (another version wrote it).
    """
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(plain) - set(hints))
    if unknown:
        raise UsageError(
            f"expected the settings of {kind.__name__}, got unknown ones ({', '.join(unknown)}); "
            "use the version of rl-replicator that made the run"
        )
    values = {}
    for name, value in plain.items():
        if dataclasses.is_dataclass(hints[name]):
            value = from_plain(hints[name], value)
        values[name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def choose(
    root: Path,
    base: str,
    trainable: str,
    identity: Mapping[str, Any],
    run_dir: Path | None,
    resume: bool,
) -> RunDirectory:
    """The directory that the options of a run ask for. Touches no file.

    Args:
      root: where runs of its kind are.
      base: how the name of a new one begins; a number follows.
      trainable: as in `RunDirectory.opened`.
      identity: as there.
      run_dir: what the user has named.
      resume: whether there must be a run to go on with: the one in `run_dir`, or the newest under
        `root` of this identity.

    Raises:
      UsageError: there is none to go on with.
    """
    if run_dir is not None:
        run = RunDirectory(run_dir)
        if resume:
            run.config()  # Raises where there is no run.
        return run
    if resume:
        wanted = json.loads(json.dumps({"trainable": trainable, **identity}))
        for run in runs(root):
            if run.config()["identity"] == wanted:
                return run
        raise UsageError(
            f"--resume: expected a run of {base} with these settings under {root}, found none; "
            "leave --resume out, or name the run with --run-dir"
        )
    number = 1
    while (root / f"{base}-{number}").exists():
        number += 1
    return RunDirectory(root / f"{base}-{number}")


def runs(root: Path) -> list[RunDirectory]:
    """The runs directly under `root`, the newest first."""
    if not root.is_dir():
        return []
    found = [path for path in root.iterdir() if (path / _CONFIG).is_file()]
    found.sort(key=lambda path: (path / _CONFIG).stat().st_mtime, reverse=True)
    return [RunDirectory(path) for path in found]
