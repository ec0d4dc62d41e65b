"""`rl-replicator train NAME [options]`, and the same from Python."""

import dataclasses
import difflib
import json
import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_replicator.cli import arguments, lasting_streams, options, trainables
from rl_replicator.errors import UsageError
from rl_replicator.runs.listener import Evaluations
from rl_replicator.runs.plain_data import to_plain
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
    file = _take(words, "--config")
    run_dir = _find(words, "--run-dir")
    stored = _stored(name, file, run_dir)
    if stored is None:
        if name is None:
            raise UsageError(
                f"expected something to train ({', '.join(trainables.names())}), --run-dir or "
                f"--config after '{_COMMAND}', got {words[0]!r}"
            )
        stored = Stored(name, {})
    if file is not None:
        stored = dataclasses.replace(stored, options=_with_kind(stored, words))
    trainable = trainables.load(stored.trainable)
    command = f"{_COMMAND} {stored.trainable}"
    default: Any = None
    if stored.options:
        default = _options(trainable, stored.options, stored.place)
        _check_kind(_kind(words), default)
    kind = trainable.options_type(words) if default is None else type(default)
    chosen: Any = options.parse(kind, command, words, trainable.alternatives(), default)
    lasting_streams.outlive_full_disk()
    return trainable.train(chosen) or 0


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
      KeyboardInterrupt: if the run was ended by a signal, or by the stop of the Launchpad program
        in whose node this was called. The run is saved.
    """
    path = None if run_dir is None else Path(os.path.expanduser(run_dir))
    file = None if config is None else os.path.expanduser(os.fspath(config))
    stored = _stored(name, file, path)
    if stored is None:
        if name is None:
            raise UsageError("expected name, run_dir of an existing run, or config, got none")
        stored = Stored(name, {})
    given = _with_home(to_plain(settings) | ({} if path is None else {"run_dir": str(path)}))
    plain = _merged(stored.options, given)
    trainable = trainables.load(stored.trainable)
    if stored.is_run:
        _check_kind(given, _options(trainable, stored.options, stored.place))
    evaluations = Evaluations(on_evaluation)
    places = [stored.place] if stored.place else []
    if settings:
        places.append("the arguments")
    chosen = _options(trainable, plain, " and ".join(places))
    status = trainable.train(chosen, evaluations) or 0
    if status:
        raise KeyboardInterrupt
    assert evaluations.run is not None
    return evaluations.run


@dataclasses.dataclass(frozen=True)
class Stored:
    """The settings of a run, as stored in its directory or in a file.

    Attributes:
      trainable: name of what is trained.
      options: its options as plain data; missing ones have their defaults.
      place: the run's directory or the file; empty if there is neither.
      is_run: whether a run has written them, so that no setting is missing.
    """

    trainable: str
    options: Mapping[str, Any]
    place: str = ""
    is_run: bool = False


def _stored(name: str | None, file: str | None, run_dir: Path | None) -> Stored | None:
    """Returns the settings to start from: those of a file, or of an existing run, or None.

    Raises:
      UsageError: if there is no such file or run, or it trains something other than `name`.
    """
    if file is not None:
        found, place = _read(Path(file)), file
    elif run_dir is not None and (RunDirectory(run_dir).exists or name is None):
        run = RunDirectory(run_dir)
        run.check_single()
        found, place = run.config(), str(run_dir)
    else:
        return None
    trainable = found.get("trainable", name)
    if not isinstance(trainable, str):
        raise UsageError(f"expected 'trainable', the name of what to train, in {place}, got none")
    if name not in (None, trainable):
        raise UsageError(
            f"expected the settings of {name} in {place}, got those of {trainable}; leave {name} "
            f"out, or choose another {'--run-dir' if file is None else '--config'}"
        )
    plain = dict(found.get("options", {}))
    # The run may have been moved since, and a stored `resume` must not apply again.
    plain |= {"run_dir": None if run_dir is None else str(run_dir), "resume": False}
    return Stored(trainable, plain, place, is_run="identity" in found)


def _options(trainable: trainables.Trainable, plain: Mapping[str, Any], place: str) -> Any:
    """Rebuilds options; an error names their source.

    Args:
      trainable: what is to be trained.
      plain: its options as plain data.
      place: their source; empty to leave it out of the error.

    Raises:
      UsageError: if an option is unknown, missing, or of another type or value.
    """
    try:
        return trainable.options_from(plain)
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


def _kind(words: Sequence[str]) -> dict[str, Any]:
    """Returns the preset and the kind of observations that the words set, by option name."""
    chosen: dict[str, Any] = {}
    preset = _take(list(words), "--preset")
    if preset is not None:
        chosen["preset"] = preset
    for word, is_wanted in (("--pixels", True), ("--no-pixels", False)):
        if word in words:
            chosen["pixels"] = is_wanted
    return chosen


def _with_kind(stored: Stored, words: Sequence[str]) -> dict[str, Any]:
    """Returns a file's options with the observations, preset and environment that the words set.

    The first two determine which other options exist, and their defaults, so they are applied
    before all others. They are not applied to the file of a run, which has all options already. A
    file may lack an environment, which has no default.
    """
    env = _take(list(words), "--env")
    chosen = {} if env is None else {"env": env}
    return {**stored.options, **chosen, **({} if stored.is_run else _kind(words))}


def _check_kind(wanted: Mapping[str, Any], default: Any) -> None:
    """Refuses to change the preset of stored settings, or what their run observes.

    All other settings are stored as well, so they would remain those of the old preset or
    observations.

    Args:
      wanted: options by name.
      default: the stored options.

    Raises:
      UsageError: if `wanted` has another preset, or other observations.
    """
    preset, pixels = wanted.get("preset"), wanted.get("pixels")
    if preset is not None and preset != getattr(default, "preset", preset):
        raise UsageError(
            f"expected the preset of the stored settings, {default.preset}, got {preset}; leave "
            "--preset out, or start without these settings"
        )
    if pixels is not None and pixels != getattr(default, "pixels", pixels):
        raise UsageError(
            "expected the observations of the stored run, got "
            f"{'--pixels' if pixels else '--no-pixels'}; leave it out, or start without its "
            "settings"
        )


def _find(words: Sequence[str], option: str) -> Path | None:
    """Returns the value of an option among the words; None if it is not there."""
    value = _take(list(words), option)
    return None if value is None else Path(value)


def _take(words: list[str], option: str) -> str | None:
    """Removes an option from the words and returns its last value; None if it is not there.

    Raises:
      UsageError: if it has no value.
    """
    values = arguments.pop(words, option)
    if None in values:
        raise UsageError(f"expected a value after {option}, got nothing; add it")
    return values[-1] if values else None


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `old` with the values of `new`; both may hold groups."""
    merged = dict(old)
    for key, value in new.items():
        if isinstance(value, Mapping):
            group = old.get(key)
            value = _merged(group if isinstance(group, Mapping) else {}, value)
        merged[key] = value
    return merged
