"""`rl-replicator train NAME [options]`, and the same from Python."""

import contextlib
import dataclasses
import difflib
import inspect
import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.cli import options, packages, trainables
from rl_replicator.errors import UsageError
from rl_replicator.runs.plain_data import to_plain
from rl_replicator.runs.run import RunListener
from rl_replicator.runs.run_directory import CONFIG_KEYS, RunDirectory

_COMMAND = "rl-replicator train"


def run(args: Sequence[str]) -> int:
    """Trains what the first word names, or what a run directory or a file describes.

    Args:
      args: the words after `train`.

    Returns:
      The exit status.

    Raises:
      UsageError: after bad input.
    """
    if not args:
        raise UsageError(
            f"expected something to train ({', '.join(trainables.names()) or 'none is registered'})"
            ", got nothing"
        )
    if args[0] in ("-h", "--help"):
        print(f"usage: {_COMMAND} {{{','.join(trainables.names())}}} [options]")
        print(f"       {_COMMAND} package.module:make_learner [options]")
        print(f"       {_COMMAND} --run-dir RUN_DIR [options]  (continue a run, as it was started)")
        print(
            f"       {_COMMAND} --config FILE [options]      (as a JSON or TOML file describes)\n"
        )
        print(f"'{_COMMAND} NAME --help' lists the options of NAME.")
        return 0
    words = list(args)
    name = None if words[0].startswith("-") else words.pop(0)
    source, words = options.parse_known(Source(), words)
    stored = _stored(name, source.config, source.run_dir)
    if stored is None:
        raise UsageError(
            f"expected something to train ({', '.join(trainables.names())}), --run-dir or "
            f"--config after '{_COMMAND}', got {words[0]!r}"
        )
    trainable = trainables.load(stored.trainable)
    with _naming(stored.place):
        chosen = trainable.parse(words, stored.options)
    return trainable.train(chosen) or 0


@dataclasses.dataclass(frozen=True)
class Source:
    """Where settings come from, besides the command line."""

    config: Path | None = None
    run_dir: Path | None = None


def train(
    name: str | None = None,
    *,
    run_dir: str | os.PathLike | None = None,
    config: str | os.PathLike | None = None,
    on_evaluation: Callable[[Mapping[str, float]], None] | None = None,
    **settings: Any,
) -> RunDirectory:
    """Trains, or continues a run, as `rl-replicator train` does.

        run = rl_replicator.train(
            "d4pg",
            env="cartpole:swingup",
            steps=50_000,
            agent={"n_step": 3},
            on_evaluation=lambda figures: print(figures["episode_return"]),
        )
        policy = agents.load_policy(run.path)

    Args:
      name: what to train. None if `run_dir` or `config` specifies it.
      run_dir: directory of the run; an existing run is continued with its stored settings.
      config: file of settings, as for `--config`.
      on_evaluation: called after each evaluation with its figures, by name; in a job of several
        processes, only in the chief's. If it raises, the run is stopped and saved, and the error
        propagates.
      **settings: options by name, as `rl-replicator train NAME --help` lists them; groups such as
        `agent` are dictionaries or dataclasses.

    Returns:
      The run's directory.

    Raises:
      UsageError: after bad input.
      SystemExit: if the main script, imported as a module, trains.
      KeyboardInterrupt: if the run was ended by a signal, or by the stop of the Launchpad program
        in whose node this was called. The run is saved.
    """
    packages.check()
    _check_guarded()
    path = None if run_dir is None else Path(os.path.expanduser(run_dir))
    file = None if config is None else Path(os.path.expanduser(config))
    stored = _stored(name, file, path)
    if stored is None:
        raise UsageError("expected name, run_dir of an existing run, or config, got none")
    trainable = trainables.load(stored.trainable)
    given = _with_home(to_plain(settings))
    trainables.check_kept(stored.options, given)
    listener = RunListener(on_evaluation)
    with _naming(" and ".join(filter(None, (stored.place, "the arguments" if settings else "")))):
        chosen = trainable.options_from(_merged(stored.options, given))
    status = trainable.train(chosen, listener) or 0
    if status:
        raise KeyboardInterrupt
    assert listener.run is not None
    return listener.run


def _check_guarded() -> None:
    """Exits if the main script calls this while it is imported again, e.g. for its environment."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    frame: Any = inspect.currentframe()
    while frame is not None:
        variables = frame.f_globals
        is_script = variables["__name__"] != "__main__" and variables.get("__file__") == script
        if frame.f_code.co_name == "<module>" and script is not None and is_script:
            # No error: the tracebacks of two trainings, one within the other, would hide the line.
            sys.stderr.write(
                f"rl-replicator: error: expected the training of {script} below 'if __name__ == "
                f'"__main__":\', because the module {variables["__name__"]} is imported for what '
                "it defines, got none\n"
            )
            raise SystemExit(2)
        frame = frame.f_back


@dataclasses.dataclass(frozen=True)
class Stored:
    """The settings of a run, as stored in its directory or in a file.

    Attributes:
      trainable: name of what is trained.
      options: its options as plain data; missing ones have their defaults.
      place: the run's directory or the file; empty if there is neither.
    """

    trainable: str
    options: Mapping[str, Any]
    place: str = ""


def _stored(name: str | None, file: Path | None, run_dir: Path | None) -> Stored | None:
    """Returns the settings to start from: those of a file, or of a run, or those of `name` alone.

    None if there are none of these.

    Raises:
      UsageError: if there is no such file or run, or it trains something other than `name`.
    """
    # The run may have been moved since, and a stored `resume` must not apply again.
    fixed = {"run_dir": None if run_dir is None else str(run_dir), "resume": False}
    if file is not None:
        found, place = _read(file), str(file)
    elif run_dir is not None and (RunDirectory(run_dir).exists or name is None):
        run = RunDirectory(run_dir)
        run.check_single()
        found, place = run.config(), str(run_dir)
    else:
        return None if name is None else Stored(name, fixed)
    trainable = found.get("trainable", name)
    if not isinstance(trainable, str):
        raise UsageError(f"expected 'trainable', the name of what to train, in {place}, got none")
    if name not in (None, trainable):
        raise UsageError(
            f"expected the settings of {name} in {place}, got those of {trainable}; leave {name} "
            f"out, or choose another {'--run-dir' if file is None else '--config'}"
        )
    return Stored(trainable, {**found.get("options", {}), **fixed}, place)


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
    """Names the source of the options in errors, if they have one."""
    try:
        yield
    except UsageError as error:
        if not place:
            raise
        raise UsageError(f"{place}: {error}") from error


def _read(path: Path) -> dict[str, Any]:
    """Reads a file of settings.

    Raises:
      UsageError: if there is no such file, it is neither JSON nor TOML, or it is not a config.
    """
    try:
        text = path.read_text()
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"--config: expected settings in {path} (JSON or TOML): {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("options", {}), dict):
        raise UsageError(
            f"--config: expected 'trainable' and 'options' in {path}, as in the config.json of a "
            "run, got something else"
        )
    unknown = next((key for key in found if key not in CONFIG_KEYS), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, CONFIG_KEYS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "move settings to 'options'"
        raise UsageError(
            f"--config: expected {', '.join(map(repr, CONFIG_KEYS))} alone in {path}, as in the "
            f"config.json of a run, got {unknown!r}; {remedy}"
        )
    return _with_home(found)


def _with_home(plain: Any) -> Any:
    """Returns a user's settings with `~` expanded in strings."""
    if isinstance(plain, Mapping):
        return {key: _with_home(value) for key, value in plain.items()}
    if isinstance(plain, list):
        return [_with_home(value) for value in plain]
    return os.path.expanduser(plain) if isinstance(plain, str) else plain


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `old` with the values of `new`; both may hold groups."""
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping):
            group = old.get(key)
            value = _merged(group if isinstance(group, Mapping) else {}, value)
        merged[key] = value
    return merged
