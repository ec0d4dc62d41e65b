"""Runs a job of several processes, and restarts it when one of them dies.

    python -m rl_replicator.jobs --workers 2 -- python train.py --resume
    python -m rl_replicator.jobs --workers 2 --parameter-servers 1 -- python train.py --resume

The exit status is that of the job, 130 after Ctrl-C, 143 after SIGTERM, and 129 after SIGHUP (the
terminal was closed). `docs/scaling.md` describes which processes are restarted, and how they end.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence

import launchpad as lp
from rl_replicator import errors
from rl_replicator.jobs import cluster
from rl_replicator.processes import gpus, ports

# A process that trains saves and ends within ten seconds of a signal on an idle machine.
SECONDS_TO_END = 120.0
# Exit statuses after which a restart would end the same way: wrong arguments, NaN weights, or a
# full disk.
_FINAL = (2, errors.DISK_STATUS)
# Restarts of the whole job, or of a worker beside parameter servers. A process that has run for
# longer than the last number of seconds has recovered; that is well above the time that it takes to
# notice a failure, such as the `call_timeout` of a `MultiWorkerReplicator`.
_FIRST_PAUSE, _LONGEST_PAUSE, _RECOVERED = 1.0, 10.0, 900.0
_LOG = logging.getLogger("launchpad")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a job.

    Args:
      argv: arguments of the command line; None for those of this process.

    Returns:
      The exit status.
    """
    options = _parser().parse_args(argv)
    try:
        program = _program(options)
    except errors.ConfigError as error:
        print(f"supervisor: error: {error}", file=sys.stderr)
        return 2
    lines = logging.StreamHandler()
    lines.setFormatter(logging.Formatter("supervisor | %(message)s"))
    _LOG.addHandler(lines)
    try:
        manager = lp.launch(program, "local_mp", termination_notice_secs=SECONDS_TO_END)
        failure = None
        try:
            manager.wait()
        except lp.NodeFailedError as error:
            failure = error
        except KeyboardInterrupt:  # A second Ctrl-C.
            return 128 + signal.SIGINT
        if manager.signal_number is not None:
            return 128 + manager.signal_number
        if failure is None:
            return 0
        title = program.groups[failure.label][failure.index].title
        _LOG.warning("%s %s; not restarting", title, failure.message)
        code = 1 if failure.exit_code is None else failure.exit_code
        return code if code >= 0 else 128 - code
    finally:
        _LOG.removeHandler(lines)


def _program(options: argparse.Namespace) -> lp.Program:
    """Returns the processes of the job on this machine as a program."""
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
        return _make_program(options, {(own.task_type, own.task_index): {}})
    if is_configured:
        raise errors.ConfigError(
            "expected either --workers or TF_CONFIG in the environment, got both; remove --workers "
            "to run the process that TF_CONFIG names, or unset TF_CONFIG to start a job here"
        )
    return _make_program(options, environments(options.workers, options.parameter_servers))


def environments(
    num_workers: int, num_parameter_servers: int
) -> dict[tuple[str, int], dict[str, str]]:
    """Returns the environment variables of a job's tasks on this machine: TF_CONFIG and GPUs.

    Args:
      num_workers: number of workers, not counting the chief of a job with parameter servers.
      num_parameter_servers: number of parameter servers; 0 for a synchronous job.

    Returns:
      The variables to add for each task, by its type and index.

    Raises:
      ConfigError: if this machine has GPUs, but fewer than workers.
    """
    counts = {"worker": num_workers}
    if num_parameter_servers:
        counts = {"chief": 1, **counts, "ps": num_parameter_servers}
    places = {
        kind: tuple(f"127.0.0.1:{ports.choose()}" for _ in range(count))
        for kind, count in counts.items()
    }
    worker_gpus = shares(num_workers)
    return {
        (kind, index): {"TF_CONFIG": cluster.Cluster(places, kind, index).to_json()}
        # Only workers compute on GPUs.
        | (worker_gpus[index] if kind == "worker" else {gpus.VISIBLE: ""} if gpus.visible() else {})
        for kind, count in counts.items()
        for index in range(count)
    }


def shares(num_workers: int) -> list[dict[str, str]]:
    """Divides the GPUs that this process may use among the workers of a job.

    All workers get the same number of GPUs, because each runs one replica per GPU. Remaining GPUs
    are not used.

    Args:
      num_workers: number of workers on this machine.

    Returns:
      The environment variables to add for each worker; none on a machine without GPUs.

    Raises:
      ConfigError: if there are GPUs, but fewer than workers.
    """
    visible = gpus.visible()
    if not visible:
        return [{} for _ in range(num_workers)]
    each = len(visible) // num_workers
    if not each:
        raise errors.ConfigError(
            f"--workers: expected at most {len(visible)}, one for each GPU of this machine, got "
            f"{num_workers}; set {gpus.VISIBLE}= to train on the CPU"
        )
    return [
        {gpus.VISIBLE: ",".join(visible[i * each : (i + 1) * each])} for i in range(num_workers)
    ]


def _make_program(
    options: argparse.Namespace, tasks: dict[tuple[str, int], dict[str, str]]
) -> lp.Program:
    """Makes the job: it is complete when its workers, or else its chief, have ended well.

    A worker beside parameter servers is restarted alone. All other failures restart the whole job.
    """
    is_asynchronous = bool(options.parameter_servers)
    program = lp.Program("job")
    for (kind, index), environment in tasks.items():
        make = lp.ServingCommandNode if is_asynchronous and kind != "chief" else lp.CommandNode
        node = make(
            options.command,
            environment,
            title=f"{kind} {index}",
            collateral_status=errors.WORKER_LOST_STATUS,
            final_statuses=_FINAL,
        )
        node.restart_policy = lp.RestartPolicy(
            max_restarts=options.max_restarts,
            on_exception=False,
            together=not (is_asynchronous and kind == "worker"),
            initial_backoff_secs=_FIRST_PAUSE,
            max_backoff_secs=_LONGEST_PAUSE,
            reset_after_secs=_RECOVERED,
        )
        program.add_node(node, label="job")
    return program


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m rl_replicator.jobs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--workers", type=_at_least(1), help="number of workers to start on this machine"
    )
    parser.add_argument(
        "--parameter-servers",
        type=_at_least(0),
        default=0,
        help="number of parameter servers; above 0, the job is asynchronous",
    )
    parser.add_argument(
        "--max-restarts",
        type=_at_least(0),
        default=5,
        help="restarts in a row before the job fails; 15 minutes without a failure reset the count",
    )
    parser.add_argument("command", nargs="+", help="the program, after --")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number from {least}, got {text!r}")
        return int(text)

    return parse
