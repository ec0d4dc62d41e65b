"""`rl-replicator COMMAND ...`: runs a command, and reports bad input in one line.

Other packages extend it through entry points, so that this package does not depend on them:

  rl_replicator.commands      a function `(args) -> exit status`; the first line of its docstring is
                              its line in the help, which reads it without importing the module.
  rl_replicator.usage_errors  a tuple of exception classes whose text is shown as one line.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import importlib.util
import os
import pkgutil
import resource
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rl_replicator.cli import packages, streams
from rl_replicator.errors import DISK_STATUS, WORKER_LOST_STATUS, DiskError, UsageError, WorkerLost
from rl_replicator.processes import signals

# Command -> (function that runs it, its line in the help).
COMMANDS = {
    "train": ("train:run", "trains an agent or a learner: train NAME [options]"),
    "eval": ("results:evaluate", "evaluates the newest checkpoint of a run: eval RUN_DIR"),
    "export": ("results:export", "writes a run's model for other programs: export RUN_DIR"),
    "plot": ("results:plot", "plots the evaluations of runs: plot RUN_DIR..."),
    "compare": ("results:compare", "compares the runs of several configs: compare RUN_DIR..."),
    "sweep": ("sweep:run", "searches for good settings: sweep NAME --search 'option=expression'"),
    "doctor": ("diagnosis:doctor", "checks versions, devices and rendering on this machine"),
}
COMMAND_GROUP = "rl_replicator.commands"
ERROR_GROUP = "rl_replicator.usage_errors"
# Commands that train go on when the disk of their output is full, and save after a signal.
_TRAINING = (["train"], ["sweep"], ["suite"])
# Exit status after bad input, and the prefix of its line on stderr.
BAD_INPUT, ERROR_PREFIX = 2, "rl-replicator: error: "
_FAILURE, _INTERRUPTED = 1, 130
# A run in threads has 64 open (bench/results/soak_d4pg_threads.csv), one with many actors more.
_OPEN_FILES, _MANY_FILES = 128, 4096
# Bytes of address space. A learner with its threads takes 3.2 GB of it on two cores.
_ADDRESS_SPACE = 4 << 30
_ROOT = Path(__file__).parents[2]


class _SignalError(KeyboardInterrupt):
    """A class of its own: Python ends by SIGINT if a plain interrupt has passed through `exec`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `rl-replicator`. Default: those of this process.

    Returns:
      The exit status: 0; 2 after bad input (explained in one line); 74 if the disk is full (one
      line); 75 if another process of the job was lost (a supervisor then restarts the whole job);
      1 after any other failure (with its traceback); 130, 143 or 129 after Ctrl-C, SIGTERM or
      SIGHUP. Output that nobody reads any more is dropped without changing the status, as is the
      output of a command that trains if the disk is full.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    streams.open_closed()
    configure_libraries()
    with streams.lasting() as out, _interrupting(args) as received:
        status = _status(args)
    if out.full_disk is not None and args[:1] not in _TRAINING:
        return _report(DiskError(f"cannot write to standard output: {out.full_disk}"))
    return 128 + received[0] if received and status == _INTERRUPTED else status


@contextlib.contextmanager
def _interrupting(args: list[str]) -> Iterator[list[int]]:
    """Makes SIGTERM and SIGHUP interrupt a command as Ctrl-C does: it removes unfinished files.

    Yields:
      A list to which the signals are added.
    """
    received: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        del frame
        if signals.note(number, received):
            raise _SignalError

    if args[:1] in _TRAINING:
        yield received
        return
    with signals.handled(interrupt):
        yield received


def _status(args: list[str]) -> int:
    """Runs one command; returns its exit status."""
    try:
        search_working_directory_last()
        packages.check()
        return _run(args)
    except SystemExit as end:  # Of tyro, once it has printed the help, or of a user's code.
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return _FAILURE
        return int(end.code or 0)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        return _report(error)


def names() -> list[str]:
    """Returns the names of all commands, those of other packages last."""
    return [*COMMANDS, *sorted(metadata.entry_points(group=COMMAND_GROUP).names)]


def _report(error: Exception) -> int:
    """Prints why a command has failed; returns the exit status."""
    if isinstance(error, WorkerLost):
        print(f"rl-replicator: {error}", file=sys.stderr)
        return WORKER_LOST_STATUS
    found = _usage_error(error)
    if found is None:
        _print_failure(error)
        return _FAILURE
    print(f"{ERROR_PREFIX}{' '.join(str(found).split())}", file=sys.stderr)
    return DISK_STATUS if isinstance(found, DiskError) else BAD_INPUT


def _print_failure(error: Exception) -> None:
    # A node's error contains the traceback from where it was raised, perhaps in the user's code.
    # The traceback of this thread, which waited for the node, would only add length.
    if hasattr(error, "traceback_text"):
        print(error, file=sys.stderr)
    else:
        traceback.print_exception(error)


def search_working_directory_last() -> None:
    """Makes modules in the working directory importable, after all others.

    A user's own factory, `--env my_module:make`, may be there, but also a folder that happens to
    have the name of one of our packages; it must not be imported in the package's place.

    Raises:
      UsageError: if the working directory was deleted.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise UsageError(
            "expected a working directory, but it was deleted; change to another one"
        ) from None
    if sys.path and sys.path[0] in ("", here):
        del sys.path[0]  # `python -m` and `python -c` put it first.
    # An editable install finds our packages only after everything on the path has been searched.
    for path in (str(_ROOT), here):
        if path not in sys.path:
            sys.path.append(path)


def configure_libraries() -> None:
    """Sets environment variables: TensorFlow and gRPC log only errors, NumPy uses one thread.

    The libraries read them once, when they are imported; child processes inherit them. Variables
    that the user has set are kept.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Actors multiply single observations by small matrices. With two threads, this takes up to
    # twice the processor time, and they share the processors with the learner.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Environments drawn by pygame open sound and screen, and lines are logged for what is missing.
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _check_process() -> None:
    """Refuses settings of the process with which libraries end in tracebacks.

    Raises:
      UsageError: if there is one.
    """
    if sys.flags.optimize > 1:
        raise UsageError(
            "expected Python with docstrings, which TensorFlow reads, got PYTHONOPTIMIZE=2 or -OO; "
            "unset it, or set 1"
        )
    if "error" in sys.warnoptions:
        raise UsageError(
            "expected warnings that are no errors, because Reverb's import warns, got "
            "PYTHONWARNINGS=error or -W error; unset it"
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < _ADDRESS_SPACE:
        raise UsageError(
            f"expected 'ulimit -v' {_ADDRESS_SPACE >> 10} or more, because TensorFlow reserves far "
            f"more memory than it uses, got {space >> 10}; raise it, or limit a container's memory"
        )
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < _OPEN_FILES:
        raise UsageError(
            f"expected at least {_OPEN_FILES} open files for a process, got 'ulimit -n' {hard}; "
            "raise it"
        )
    if 0 <= soft < _MANY_FILES:  # That of a shell may be low.
        most = min(hard, _MANY_FILES) if hard >= 0 else _MANY_FILES
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _run(args: list[str]) -> int:
    args = [_with_home(word) for word in args]
    name = args[0] if args else "--help"
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name == "--version":
        print(_version())
        return 0
    _check_process()
    if name != "doctor":  # It names all that does not fit.
        packages.check_numpy()
    if name in COMMANDS:
        return pkgutil.resolve_name(f"rl_replicator.cli.{COMMANDS[name][0]}")(args[1:])
    registered = metadata.entry_points(group=COMMAND_GROUP)
    if name in registered.names:
        try:
            function = registered[name].load()
            if not callable(function):
                raise ImportError("it is no function")
        except (ImportError, AttributeError) as error:  # As after a change of an editable install.
            raise UsageError(
                f"expected the command {name!r} at {registered[name].value}: {error}; install its "
                "package again, this project by 'make install'"
            ) from error
        return function(args[1:])
    known = names()
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageError(
        f"expected a command ({', '.join(known)}), got {name!r}; {hint}"
        "'rl-replicator --help' explains them"
    )


def _with_home(word: str) -> str:
    """Returns `--option=~/path` with `~` expanded, which the shell does not do after `=`."""
    option, equals, value = word.partition("=")
    return f"{option}={os.path.expanduser(value)}" if equals and option[:2] == "--" else word


def _usage_error(error: BaseException) -> BaseException | None:
    """Returns the first error in the chain of causes that a user can act on."""
    kinds = _usage_errors()
    return next((link for link in _causes(error) if isinstance(link, kinds)), None)


def _usage_errors() -> tuple[type[BaseException], ...]:
    from rl_replicator.processes.ports import OpenPortError

    kinds: list[type[BaseException]] = [UsageError, OpenPortError]
    for entry in metadata.entry_points(group=ERROR_GROUP):
        kinds.extend(entry.load())
    return tuple(kinds)


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _help() -> str:
    texts = {name: text for name, (_, text) in COMMANDS.items()}
    for entry in sorted(metadata.entry_points(group=COMMAND_GROUP), key=lambda entry: entry.name):
        texts[entry.name] = _summary(entry)
    width = max(map(len, texts))
    lines = [f"  {name:<{width}}  {text}" for name, text in texts.items()]
    return "\n".join(
        [
            "usage: rl-replicator COMMAND [options]",
            "",
            "Trains reinforcement-learning agents and supervised learners on any number of"
            " devices.",
            "",
            *lines,
            "",
            "'rl-replicator COMMAND --help' shows a command's options, for example",
            "'rl-replicator train d4pg --help'.",
        ]
    )


def _summary(entry: metadata.EntryPoint) -> str:
    """Returns the first line of a function's docstring; "" if there is none."""
    try:
        spec = importlib.util.find_spec(entry.module)
    except ImportError:  # Its package is not there any more.
        spec = None
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
            first = (ast.get_docstring(node) or "").partition("\n")[0]
            return f"{first[:1].lower()}{first[1:]}"
    return ""


def _version() -> str:
    try:
        return metadata.version("rl-replicator")
    except metadata.PackageNotFoundError:
        return "not installed (running from source)"


if __name__ == "__main__":
    sys.exit(main())
