"""MultiWorkerAsyncReplicator, with real workers and parameter servers on this machine."""

import itertools
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import pytest
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.backends.parameter_server import scheduler, watch
from rl_replicator.processes import ports
from tests.suite import forked
from tests.waiting import wait_until

PROGRAM = pathlib.Path(__file__).with_name("asynchronous_program.py")
# Four processes import TensorFlow, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(300)
CONTRACT = (
    "elements_of_all_workers_are_used_once",
    "a_call_takes_no_more_steps_than_asked",
    "an_mlp_learns",
    "staleness_is_bounded_with_a_slow_worker",
    "a_callable_for_every_worker",
    "two_steps_share_one_input",
    "a_restart_begins_a_whole_pass",
    "a_step_that_waits_for_data_is_cancelled",
    "errors_reach_the_caller",
    "misuse_has_one_line",
    "concurrent_evaluations_of_keras_models_are_refused",
    "padded_evaluation_sees_every_example_once",
    "slots_are_on_the_server_of_their_parameter",
    "a_checkpoint_of_a_run_is_a_snapshot",
    "a_killed_worker_comes_back",
    "a_killed_server",
)


def make_cluster(workers, servers):
    """Returns addresses by kind of task."""
    chief, *others = (f"127.0.0.1:{ports.choose()}" for _ in range(1 + workers + servers))
    return {"chief": [chief], "worker": others[:workers], "ps": others[workers:]}


def listen(address):
    """Returns a socket that listens on an address."""
    host, port = address.split(":")
    return socket.create_server((host, int(port)), backlog=64)


class Job:
    """The processes of one cluster, which are killed at the end of the context.

    `worker_timeout` is long because a restarted worker takes a minute on a busy machine.
    """

    def __init__(self, folder, workers, servers, names, worker_timeout=120):
        self.report = folder / "report"
        self.processes = {}
        self._cluster = make_cluster(workers, servers)
        self._names = names
        self._worker_timeout = str(worker_timeout)
        for kind, addresses in self._cluster.items():
            for index in range(len(addresses)):
                if kind != "chief":
                    self.start(kind, index)
        process_ids = {t: forked.program(process) for t, process in self.processes.items()}
        pathlib.Path(f"{self.report}.pids").write_text(json.dumps(process_ids))
        self.start("chief", 0)

    def start(self, kind, index):
        config = {"cluster": self._cluster, "task": {"type": kind, "index": index}}
        root = str(PROGRAM.parents[2])
        environment = {**os.environ, "TF_CONFIG": json.dumps(config), "PYTHONPATH": root}
        task = f"{kind} {index}"
        with self._log(task).open("a") as log:
            self.processes[task] = subprocess.Popen(
                [*forked.python(), PROGRAM, self.report, self._worker_timeout, *self._names],
                env=environment,
                stderr=log,
            )

    def _log(self, task):
        return self.report.with_suffix(f".{task}.log")

    def wait_for_line(self, task, text):
        """Waits until a process has logged a line with a text."""
        wait_until(lambda: text in self._log(task).read_text())

    def results(self, timeout):
        """Returns each behaviour's traceback or None, by name, and the details the chief noted."""
        assert self.processes["chief 0"].wait(timeout) == 0
        return json.loads(self.report.read_text())

    def statuses(self, timeout):
        """Returns the exit status of every task."""
        deadline = time.monotonic() + timeout
        return {
            task: process.wait(max(0.1, deadline - time.monotonic()))
            for task, process in self.processes.items()
        }

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for task, process in self.processes.items():
            process.kill()
            process.wait()
            print(self._log(task).read_text(), file=sys.stderr)


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    """Runs the whole contract on one cluster, which ends with the loss of its parameter server."""
    with Job(tmp_path_factory.mktemp("contract"), 2, 2, CONTRACT) as job:
        report, details = job.results(240)
        yield report, details, job.statuses(30)


@pytest.mark.processes
@pytest.mark.parametrize("name", CONTRACT)
def test_contract(contract, name):
    report, _, _ = contract
    assert report[name] is None, report[name]


@pytest.mark.processes
def test_workers_end_with_the_chief(contract):
    _, details, statuses = contract
    print(details)
    killed = {"worker 1": -9, "ps 0": -9}
    assert statuses == {"chief 0": 0, "worker 0": 0, "ps 1": 0, **killed}


@pytest.mark.processes
def test_on_several_machines_a_chief_that_is_started_again_finds_its_servers(tmp_path):
    """Then its only worker freezes."""
    names = ("a_killed_chief_finds_its_servers_again", "a_frozen_worker")
    with Job(tmp_path, 1, 1, names, worker_timeout=16) as job:
        assert job.processes["chief 0"].wait(240) == -signal.SIGKILL
        for task in ("worker 0", "ps 0"):
            job.wait_for_line(task, "is gone; waiting 200 s for it to be restarted")
        job.start("chief", 0)
        report, _ = job.results(240)
        assert report == dict.fromkeys(names), report


def test_a_worker_that_never_starts_is_named():
    addresses = make_cluster(2, 1)
    with listen(addresses["worker"][0]), listen(addresses["ps"][0]):
        begun = time.monotonic()
        match = r"but worker 1 \(127.0.0.1:\d+\) did not within 1 s"
        with pytest.raises(rr.WorkerLost, match=match) as caught:
            rr.MultiWorkerAsyncReplicator(rr.Cluster(addresses, "chief", 0), start_timeout=1)
        assert time.monotonic() - begun < 60 and caught.value.workers == (1,)


def test_workers_that_are_all_gone_are_named(monkeypatch):
    monkeypatch.setattr(watch, "_ask", set)  # The parameter server answers immediately.
    addresses = make_cluster(2, 1)
    tasks = watch.Watch(rr.Cluster(addresses, "chief", 0), worker_timeout=1.5)
    with listen(addresses["ps"][0]):
        loss = wait_until(tasks.check, pause=0.05)
    assert loss.workers == (0, 1) and "worker 0" in str(loss) and "is gone or frozen" in str(loss)


@pytest.fixture
def deaf(monkeypatch):
    """A Watch whose worker listens but never answers; it notices the silence after 2 seconds."""
    asked = []
    monkeypatch.setattr(watch, "_ask", lambda tasks: asked.append(tasks) or {("ps", 0)})
    cluster = make_cluster(1, 1)
    with listen(cluster["worker"][0]), listen(cluster["ps"][0]):
        yield watch.Watch(rr.Cluster(cluster, "chief", 0), worker_timeout=2), asked


def test_a_task_that_answers_nothing_is_named_after_the_timeout(deaf):
    tasks, asked = deaf
    begun = time.monotonic()
    loss = wait_until(tasks.check, pause=0.05)
    # Half of the timeout may have passed before.
    assert time.monotonic() - begun >= 1.0 and asked == [[("worker", 0), ("ps", 0)]]
    assert loss.workers == (0,)
    assert "worker 0" in str(loss) and "has not answered for 2 s" in str(loss)


def test_only_a_lost_server_is_blamed(deaf):
    """A step's own error also names the server if the server was waiting for the step's results."""
    place = "Additional GRPC error information from remote target /job:ps/replica:0/task:0/device:"
    for error, text, is_loss in (
        (tf.errors.InvalidArgumentError, "bad : Tensor had Inf values [[CheckNumerics]]", False),
        (tf.errors.InternalError, "a kernel failed", False),
        (tf.errors.OutOfRangeError, "End of sequence", False),
        (tf.errors.InvalidArgumentError, "Unable to find a context_id matching 17", True),
        (tf.errors.AbortedError, "Unable to find a context_id matching 17", True),
        (tf.errors.UnavailableError, "Socket closed", True),
    ):
        found = error(None, None, f"2 root error(s) found. (0) {text} {place}CPU:0")
        loss = deaf[0].blame(found)
        assert (loss is not None) == is_loss, text
        assert loss is None or ("ps 0" in str(loss) and "was restarted empty" in str(loss))


def test_a_server_whose_port_is_taken_ends():
    cluster = rr.Cluster(make_cluster(1, 1), "ps", 0)
    with (
        listen(cluster.own_address),
        pytest.raises(rr.ConfigError, match="to be free for this process"),
    ):
        rr.MultiWorkerAsyncReplicator(cluster)


def test_misuse_has_one_line(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(rr.ConfigError, match="expected TF_CONFIG in the environment"):
        rr.make("multi_worker_async")
    for argument in ("max_staleness=", "max_staleness=-1", "4", "staleness=4"):
        with pytest.raises(rr.ConfigError, match="multi_worker_async:max_staleness=4"):
            rr.make(f"multi_worker_async:{argument}")
    cluster = make_cluster(1, 1)
    with pytest.raises(rr.ConfigError, match="max_staleness to be at least 0, got -1"):
        rr.MultiWorkerAsyncReplicator(rr.Cluster(cluster, "chief", 0), max_staleness=-1)
    with pytest.raises(rr.ConfigError, match="start_timeout above 0 seconds"):
        rr.MultiWorkerAsyncReplicator(rr.Cluster(cluster, "chief", 0), start_timeout=0)
    cluster.pop("ps")
    with pytest.raises(rr.ConfigError, match=r"at least one ps, got 1 chief, 1 worker; add"):
        rr.MultiWorkerAsyncReplicator(rr.Cluster(cluster, "chief", 0))


def run_simulated(bound, durations, calls, sizes=(1,)):
    """Simulates calls that take `durations` in turn and begin as soon as they are admitted.

    Assumes the worst case: if two calls are open at the same time, every update of one falls
    between the read and the update of any step of the other.

    Args:
      bound: the bound.
      durations: seconds that the calls take, in turn.
      calls: number of calls.
      sizes: numbers of steps of the calls, in turn.

    Returns:
      The staleness of each call, and the largest number of calls that were open at a time.
    """
    now, begun, running, limits, met, most = 0.0, 0, {}, {}, {}, 0
    size = [sizes[i % len(sizes)] for i in range(calls)]
    while begun < calls or running:
        while begun < calls and bound.admits(size[begun]):
            for key in running:
                met[key] += size[begun]
            met[begun] = sum(size[key] for key in running)
            limits[begun] = bound.open(size[begun])
            running[begun] = now + durations[begun % len(durations)]
            begun += 1
        most = max(most, len(running))
        first = min(running, key=running.get)
        now = running.pop(first)
        bound.close(limits.pop(first), size[first])
    return met, most


@pytest.mark.parametrize("max_staleness", [0, 1, 2, 3, 8])
def test_bound_holds_in_the_worst_case(max_staleness):
    sizes = ((1,), (3,), (3, 1), (1, 3))
    durations = ([1.0], [1.0, 10.0], [1.0, 3.0, 20.0])
    for taken, seconds in itertools.product(sizes, durations):
        met, most = run_simulated(scheduler.Bound(max_staleness, 4), seconds, 50, taken)
        assert len(met) == 50 and max(met.values()) <= max_staleness
        if len(taken) == 1:  # As many calls as the bound and the workers allow.
            assert most == min(8, 1 + max_staleness // taken[0])


def test_without_a_bound_the_queue_is_full():
    met, most = run_simulated(scheduler.Bound(None, 4), [1.0, 50.0], 200)
    assert most == 8 and max(met.values()) > 8
