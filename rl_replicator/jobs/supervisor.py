"""Runs a job of several processes, and restarts it when one of them dies.

    python -m rl_replicator.jobs --workers 2 -- python train.py --resume
    python -m rl_replicator.jobs --workers 2 --parameter-servers 1 -- python train.py --resume

The exit status is that of the job, 130 after Ctrl-C, 143 after SIGTERM, and 129 after SIGHUP (the
terminal was closed). `docs/scaling.md` describes which processes are restarted, and how they end.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from rl_replicator import errors
from rl_replicator.jobs import cluster, local_job
from rl_replicator.jobs.restarts import RestartLoop
from rl_replicator.processes import signals
from rl_replicator.processes.restarts import Restarts

# `rl-replicator train` saves and ends within ten seconds of SIGINT on an idle machine.
_SECONDS_TO_END = 120.0
# Grace period after a failure. The other processes have nothing to save: a restart continues from
# the last checkpoint.
_SECONDS_AFTER_FAILURE = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a job.

    Args:
      argv: arguments of the command line; None for those of this process.

    Returns:
      The exit status.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        tasks, _ports = _tasks(options)
    except errors.ConfigError as error:
        print(f"supervisor: error: {error}", file=sys.stderr)
        return 2
    job = local_job.LocalJob(options.command, tasks, options.max_restarts)
    received: list[int] = []
    supervisor = RestartLoop(
        job.start,
        job.poll,
        lambda: job.stop(_SECONDS_TO_END if received else _SECONDS_AFTER_FAILURE),
        Restarts(options.max_restarts),
        local_job.report,
    )

    def end(number: int, _: object) -> None:
        if not signals.note(number, received):
            return
        if len(received) > 1:
            job.hurry()
        supervisor.end()

    with signals.handled(end):
        status = supervisor.run()
    return 128 + received[0] if status is None else status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m rl_replicator.jobs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--workers", type=_positive, help="number of workers to start on this machine"
    )
    parser.add_argument(
        "--parameter-servers",
        type=_natural,
        default=0,
        help="number of parameter servers; above 0, the job is asynchronous",
    )
    parser.add_argument(
        "--max-restarts",
        type=_natural,
        default=5,
        help="restarts in a row before the job fails; 15 minutes without a failure reset the count",
    )
    parser.add_argument("command", nargs="+", help="the program, after --")
    return parser


def _tasks(options: argparse.Namespace) -> tuple[list[local_job.JobTask], local_job.Ports | None]:
    """Returns the tasks to run on this machine, and the reservation of their ports."""
    is_configured = bool(os.environ.get("TF_CONFIG"))
    if options.workers is None:
        if options.parameter_servers:
            raise errors.ConfigError(
                "expected --workers with --parameter-servers, got none; add --workers"
            )
        if not is_configured:
            raise errors.ConfigError(
                "expected --workers, or TF_CONFIG in the environment, got neither; add --workers, "
                "such as --workers 2, to start a job on this machine"
            )
        own = cluster.Cluster.from_environment()
        return [local_job.JobTask(f"{own.task_type} {own.task_index}", {})], None
    if is_configured:
        raise errors.ConfigError(
            "expected either --workers or TF_CONFIG in the environment, got both; remove --workers "
            "to run the process that TF_CONFIG names, or unset TF_CONFIG to start a job here"
        )
    count = options.workers + options.parameter_servers + bool(options.parameter_servers)
    ports = local_job.Ports(count)
    tasks = local_job.make_tasks(options.workers, options.parameter_servers, ports.addresses)
    return tasks, ports


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number from 0, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text!r}")
    return int(text)
