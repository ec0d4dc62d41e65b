"""`rl-replicator COMMAND ...`: finds the command, keeps libraries quiet, turns bad input into one
line."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence

from rl_replicator.cli import stderr_filter

# Command -> (module with `run(args) -> exit status`, what the help says).
COMMANDS = {
    "train": ("rl_replicator.cli.train", "train an agent or a network: train NAME [options]"),
    "eval": ("rl_replicator.cli.eval", "evaluate the newest checkpoint of a run: eval RUN_DIR"),
    "video": ("rl_replicator.cli.video", "film an evaluation episode of a run: video RUN_DIR"),
    "plot": ("rl_replicator.cli.plot", "plot the returns of runs: plot RUN_DIR..."),
    "envs": ("rl_replicator.cli.envs", "list the tasks that can be trained on"),
    "doctor": ("rl_replicator.cli.doctor", "check versions, devices and rendering on this machine"),
}
# Those that load TensorFlow.
_NOISY = ("train", "eval", "video")
_BAD_INPUT, _FAILURE, _INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
      argv: the words after `rl-replicator`; those of this process by default.

    Returns:
      The exit status: 0, 2 after bad input (one line says which), 75 where another process of the
      job was lost (a supervisor then starts them all again), 1 after any other failure (its
      traceback is shown), 130 after an interrupt.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, "")  # A user's own factory, `--env my_module:make`, lies here.
    quiet_libraries()
    try:
        status = _run(args)
        sys.stdout.flush()  # Here, where a reader that has gone is noticed and forgiven.
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # The reader, `head` perhaps, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        from rl_replicator.errors import WORKER_LOST_STATUS, WorkerLost

        if isinstance(error, WorkerLost):
            print(f"rl-replicator: {error}", file=sys.stderr)
            return WORKER_LOST_STATUS
        message = _usage_message(error)
        if message is None:
            traceback.print_exc()
            return _FAILURE
        print(f"rl-replicator: error: {message}", file=sys.stderr)
        return _BAD_INPUT


def quiet_libraries() -> None:
    """Asks TensorFlow and gRPC for errors only. They read this once, when they are imported.

    Child processes inherit it. What the user has set stays.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def _run(args: list[str]) -> int:
    from rl_replicator.errors import UsageError

    name = args[0] if args else "--help"
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name == "--version":
        print(_version())
        return 0
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UsageError(
            f"expected a command ({', '.join(COMMANDS)}), got {name!r}; {hint}"
            "'rl-replicator --help' explains them"
        )
    if name in _NOISY:
        stderr_filter.silence()
    return importlib.import_module(COMMANDS[name][0]).run(args[1:])


def _usage_message(error: BaseException) -> str | None:
    """The text of the first error in the chain of causes that the user can act on, as one line."""
    kinds = _usage_errors()
    for link in _causes(error):
        if isinstance(link, kinds):
            return " ".join(str(link).split())
    return None


def _usage_errors() -> tuple[type[BaseException], ...]:
    from rl_replicator.errors import UsageError

    # This package knows nothing of `environments`; if its errors are not loaded, none was raised.
    module = sys.modules.get("environments.errors")
    names = ("EnvironmentUsageError", "RenderingUnavailableError")
    return (UsageError, *(getattr(module, name) for name in names if hasattr(module, name)))


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: rl-replicator COMMAND [options]",
            "",
            "Trains reinforcement-learning agents with replicated learners.",
            "",
            *lines,
            "",
            "'rl-replicator COMMAND --help' shows a command's options, for example",
            "'rl-replicator train d4pg --help'.",
        ]
    )


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("rl-replicator")
    except metadata.PackageNotFoundError:
        return "not installed (running from source)"


if __name__ == "__main__":
    sys.exit(main())
