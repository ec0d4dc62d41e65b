"""The contract of replicators with several real processes, and how lost processes are reported.

The behaviours are in multi_worker_program.py; one group of processes runs many of them.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import rl_replicator as rr
from rl_replicator.jobs import supervisor
from tests.conformance import multi_worker_program
from tests.suite import forked

# A group takes 10 to 30 seconds, mostly to import TensorFlow, and many times that on a busy
# machine.
WAIT = 300
CALL_TIMEOUT = 2
pytestmark = [pytest.mark.processes, pytest.mark.timeout(WAIT + 20)]

ROOT = pathlib.Path(__file__).parents[2]
# The behaviours of groups of one, two and three processes. The last behaviour of the larger groups
# ends the group. Three processes run what may differ from two: means, and which processes learn of
# a cancellation, an end or a loss.
BEHAVIOURS = {
    1: ("places", "order_gather_and_reduce"),
    2: (
        "initial_values_are_the_chiefs",
        "order_gather_and_reduce",
        "every_collective_equals_numpy",
        "gathering_different_things",
        "callable_input",
        "random_numbers_differ",
        "two_steps_share_one_input",
        "layers_and_slots_appear_in_the_first_step",
        "padded_evaluation_sees_every_example_once",
        "an_error_of_one_input_ends_the_step_of_all",
        "different_collectives_are_refused",
        "different_outputs_are_refused",
        "different_variables_are_refused",
        "different_steps",
        "exchanges_leave_nothing_behind",
        "training_saves_by_the_clock_without_waiting_for_other_processes",
        "a_keras_learner_is_evaluated",
        "a_frozen_worker",
    ),
    3: (
        "places",
        "equals_one_replica",
        "shapes_change_from_step_to_step",
        "a_cancel_in_one_process_cancels_the_step_of_all",
        "uneven_data_ends_at_an_agreed_step",
        "batches_of_different_sizes_are_refused",
        "a_killed_worker",
    ),
}


class Group:
    """Processes that run behaviours, and their reports."""

    def __init__(self, folder, size, names, present=None, **timeouts):
        self.size = size
        tasks = supervisor.environments(size, 0)
        program = ["-m", multi_worker_program.__name__]
        self._report = folder / "report"
        self._logs = []
        self._processes = []
        for (kind, index), environment in [*tasks.items()][:present]:
            self._logs.append(folder / f"{kind} {index}")
            with self._logs[-1].open("w") as log:
                # The second of two is a new interpreter, not a fork, so that it has another seed
                # for string hashes: an order that depends on them must be noticed.
                is_new = names == BEHAVIOURS[2] and len(self._logs) == 2
                python = (sys.executable,) if is_new else forked.python()
                process = subprocess.Popen(
                    [*python, *program, str(self._report), *names],
                    cwd=ROOT,
                    env={**os.environ, **environment, "TIMEOUTS": json.dumps(timeouts)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            self._processes.append(process)
        self.addresses = json.loads(tasks["worker", 0]["TF_CONFIG"])["cluster"]["worker"]

    def wait(self, frozen=()):
        """Waits until all processes have ended except the frozen ones, then kills what is left."""
        deadline = time.monotonic() + WAIT
        self.late = []
        for index, process in enumerate(self._processes):
            try:
                if index not in frozen:
                    process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.late.append(index)
        for process in self._processes:
            process.kill()
        self.statuses = [process.wait() for process in self._processes]
        self.outputs = [log.read_text() for log in self._logs]

    def report(self, index):
        path = self._report.with_suffix(f".{index}")
        assert path.exists(), self.outputs[index]
        return json.loads(path.read_text())

    def check(self, name):
        assert not self.late, "".join(self.outputs[index] for index in self.late)
        for index in range(self.size):
            failure = self.report(index)[0].get(name, f"{name} was not reached")
            assert failure is None, f"worker {index}:\n{failure}"

    def details(self, index):
        return self.report(index)[1]


@pytest.fixture(scope="module")
def groups(tmp_path_factory):
    """A function that returns the group of a given size after it has run its behaviours."""
    made = {}

    def get(size):
        if size not in made:
            made[size] = Group(tmp_path_factory.mktemp("group"), size, BEHAVIOURS[size])
            made[size].wait(frozen=(1,) if size == 2 else ())
        return made[size]

    return get


@pytest.mark.parametrize(
    ("size", "name"), [(size, name) for size, names in BEHAVIOURS.items() for name in names]
)
def test_behaviour(groups, size, name):
    groups(size).check(name)


@pytest.fixture(scope="module")
def reference():
    """The weights and losses of one device."""
    return multi_worker_program.train(rr.SingleDeviceReplicator(), 20)


def test_20_steps_equal_one_replica_with_the_global_batch(groups, reference):
    weights, losses = reference
    for index in range(3):
        got_weights, got_losses = groups(3).details(index)["trained"]
        np.testing.assert_allclose(got_losses, losses, rtol=1e-5)
        for got, want in zip(got_weights, weights, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_killed_worker_is_named_within_seconds(groups):
    killed = groups(3).details(2)["at"]
    for index in (0, 1):
        details = groups(3).details(index)
        assert details["workers"] == [2]
        assert f"worker 2 ({groups(3).addresses[2]})" in details["error"]
        print(f"\nkilled, noticed after {details['at'] - killed:.2f} s: {details['error']}")
        assert details["at"] - killed < 30  # Half a second on an idle machine.


def test_a_frozen_worker_is_named_within_its_deadline(groups):
    details = groups(2).details(0)
    seconds = details["at"] - groups(2).details(1)["at"]
    print(f"\nfrozen, noticed after {seconds:.2f} s: {details['error']}")
    assert details["workers"] == [1]
    assert seconds < multi_worker_program.SECONDS_TO_FREEZE + 30


def test_an_error_in_the_step_of_one_is_an_error_in_the_others(tmp_path):
    name = "an_error_in_the_step_of_one"
    group = Group(tmp_path, 2, [name])
    group.wait()
    group.check(name)
    assert group.details(0)["seconds"] < multi_worker_program.TIMEOUTS["call_timeout"] / 2


def test_a_call_that_one_does_not_make_ends_after_its_timeout(tmp_path):
    name = "a_call_that_one_does_not_make"
    group = Group(tmp_path, 2, [name], call_timeout=CALL_TIMEOUT)
    group.wait()
    group.check(name)
    assert CALL_TIMEOUT <= group.details(0)["seconds"] < CALL_TIMEOUT + 30
    assert group.statuses[1] == -signal.SIGTERM


def test_a_worker_that_never_starts_is_named(tmp_path):
    group = Group(tmp_path, 2, ["places"], present=1, start_timeout=1)
    group.wait()
    assert not group.late
    missing = f"worker 1 ({group.addresses[1]})"
    (output,) = group.outputs
    assert f"WorkerLost: expected all workers to start, but {missing} did not within 1" in output


def test_misuse_is_refused_at_once():
    program = """
import socket
import tensorflow as tf, rl_replicator as rr
from rl_replicator.processes import ports
address = f"127.0.0.1:{ports.choose()}"
tf.constant(1)
for arguments in ({"peer_timeout": 0}, {}):
    try:
        rr.MultiWorkerReplicator(rr.Cluster.of_workers([address], 0), **arguments)
    except rr.ConfigError as error:
        print(error)
listener = socket.create_server(("127.0.0.1", int(address.split(":")[1])))
for cluster in (None, rr.Cluster.of_workers([address], 0)):
    try:
        rr.MultiWorkerReplicator(cluster)
    except rr.ConfigError as error:
        print(error)
"""
    command = [*forked.python(), "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT)
    lines = done.stdout.splitlines()
    expected = (
        "expected peer_timeout above 0 seconds, got 0",
        "expected TensorFlow's devices to be unused",
        "expected TF_CONFIG in the environment, found none",
        "expected the port of 127.0.0.1:",
    )
    assert len(lines) == len(expected), done.stdout + done.stderr
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start) and "; " in line


def test_after_a_kill_the_whole_group_trains_on(tmp_path, reference):
    command = [sys.executable, "-m", "rl_replicator.jobs", "--workers", "2", "--"]
    program = [*forked.python(), "-m", multi_worker_program.__name__, str(tmp_path / "report")]
    done = subprocess.run(
        [*command, *program, "is_killed_and_trains_on"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "worker 1 failed: ProcessDied: was killed by SIGKILL; restart 1 of 5" in done.stderr
    report, details = json.loads((tmp_path / "report.0").read_text())
    assert report == {"is_killed_and_trains_on": None}, report
    seconds = details["at"] - float((tmp_path / "killed").read_text())
    print(f"\nback to training {seconds:.1f} s after kill -9")  # Twelve on an idle machine.
    for got, want in zip(details["weights"], reference[0], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
