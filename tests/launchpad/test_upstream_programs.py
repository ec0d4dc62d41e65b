"""Programs written for DeepMind's Launchpad run unmodified."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import launchpad as lp
from launchpad.examples.consumer_producers import program as consumer_producers
from tests.waiting import run_python

# A program as users of DeepMind's Launchpad write them, without extensions of ours.


def make_tables():
    import reverb

    return [reverb.Table.queue("queue", max_size=10)]


class Weights:
    def __init__(self):
        self._num_calls = 0

    def get_variables(self, names):
        self._num_calls += 1
        return [np.full(3, len(name)) for name in names]

    def num_calls(self) -> int:
        return self._num_calls


def write_items(client, cacher) -> None:
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for _ in range(20):
            variables = cacher.get_variables(["ab", "abc"])
        for variable in variables:
            writer.append({"weights": variable})
            trajectory = {"w": writer.history["weights"][-1:]}
            writer.create_item("queue", priority=1.0, trajectory=trajectory)
        writer.flush()


class Reader:
    def __init__(self, client, weights, path):
        self._client = client
        self._weights = weights
        self._path = path

    def run(self) -> None:
        samples = self._client.sample("queue", num_samples=2, emit_timesteps=False)
        found = [sample.data[0][0].tolist() for sample in samples]
        with open(self._path, "w") as file:
            file.write(f"{found} {self._weights.num_calls() < 20}")
        lp.stop()


def make_program(path: str) -> lp.Program:
    program = lp.Program("upstream")
    weights = program.add_node(lp.CourierNode(Weights), label="weights")
    with program.group("cacher"):
        cacher = program.add_node(
            lp.CacherNode(weights, refresh_interval_ms=60_000, stale_after_ms=600_000)
        )
    replay = program.add_node(
        lp.ReverbNode(priority_tables_fn=make_tables, checkpoint_time_delta_minutes=None),
        label="replay",
    )
    program.add_node(lp.PyNode(write_items, replay, cacher), label="writer")
    program.add_node(lp.CourierNode(Reader, replay, weights, path), label="reader")
    return program


def test_it_runs_unmodified(engine, tmp_path):
    path = tmp_path / "result"
    lp.launch(make_program(str(path)), launch_type=engine).wait()
    assert path.read_text() == "[[2, 2, 2], [3, 3, 3]] True"


def test_module_paths():
    """Those that the names in docs/launchpad-api.md do not contain; see test_api.py."""
    for name in (
        *("launch.worker_manager_v2", "launch.local_multi_processing.launch", "nodes.python.node"),
        *("nodes.cacher.node", "nodes.courier.node", "nodes.multi_processing_colocation.node"),
        *("nodes.multi_threading_colocation.node", "stop_program.stop", "address"),
    ):
        assert importlib.import_module(f"launchpad.{name}") is not None


def test_steps_of_a_consumer_that_does_not_run(capsys):
    """As in upstream's test of this example, with the names that its other tests use."""
    launch = importlib.import_module("launchpad.launch.test_multi_threading.launch")
    program = consumer_producers.make_program(num_producers=3)
    (consumer,) = program.groups["consumer"]
    consumer.disable_run()
    program.add_node(lp.PyNode(launch.worker_manager_v2.wait_for_stop), label="block")
    manager = launch.launch(program, test_case=None)
    for _ in range(2):
        consumer.create_handle().dereference().step()
    manager.stop_and_wait()
    assert capsys.readouterr().out == 2 * "Results: 3\n"


_ENDS = ["polled", "the program has ended", "used the event", "waited", "was interrupted"]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("consumer_producers", ["--num_producers=3"], ["Results: 3"]),
        (
            "batching",
            ["--lp_launch_type=local_mp", "--num_clients=3"],
            ["client 0: 90", "client 1: 110", "client 2: 130"],
        ),
        ("hello_world", ["--lp_launch_type=local_mp"], ["Hello World!!!"]),
        ("program_wait", [], 2 * _ENDS),
    ],
)
def test_the_examples_run_as_commands(name, options, told):
    ignored = ["--lp_worker_manager_v2", "--tmux_session_name=mine", "--tmux_open_window"]
    options = options + (ignored if name == "hello_world" else [])
    done = run_python("-m", f"launchpad.examples.{name}.launch", *options)
    assert done.returncode == 0, done.stderr
    for flag in ignored:
        says = f"{flag.partition('=')[0]} has no effect here\n" in done.stderr
        assert says == (name == "hello_world"), done.stderr
    # Lines of threads may run into each other.
    assert {text: done.stdout.count(text) for text in told} == {t: told.count(t) for t in told}
