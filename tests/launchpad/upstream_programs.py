"""Two programs as users of DeepMind's Launchpad write them, without extensions of ours."""

from __future__ import annotations

import numpy as np

import launchpad as lp


class Result:
    """Writes a program's result to a file."""

    def __init__(self, path: str):
        self._path = path

    def write(self, value) -> None:
        with open(self._path, "w") as file:
            file.write(repr(value))


# -- Reverb -------------------------------------------------------------------------------


def make_tables():
    import reverb

    return [reverb.Table.queue("queue", max_size=10)]


def write_items(client) -> None:
    with client.trajectory_writer(num_keep_alive_refs=1) as writer:
        for step in range(3):
            writer.append({"step": np.int64(step)})
            writer.create_item("queue", priority=1.0, trajectory={"s": writer.history["step"][-1:]})
        writer.flush()


def read_items(client, result) -> None:
    samples = client.sample("queue", num_samples=3, emit_timesteps=False)
    result.write([int(sample.data[0][0]) for sample in samples])
    lp.stop()


def make_reverb_program(path: str) -> lp.Program:
    program = lp.Program("reverb")
    result = program.add_node(lp.CourierNode(Result, path), label="result")
    replay = program.add_node(
        lp.ReverbNode(priority_tables_fn=make_tables, checkpoint_time_delta_minutes=None),
        label="replay",
    )
    program.add_node(lp.PyNode(write_items, replay), label="writer")
    program.add_node(lp.PyNode(read_items, replay, result), label="reader")
    return program


# -- a cacher -----------------------------------------------------------------------------


class Weights:
    def __init__(self):
        self._num_calls = 0

    def get_variables(self, names):
        self._num_calls += 1
        return [np.full(3, len(name)) for name in names]

    def num_calls(self) -> int:
        return self._num_calls


class Reader:
    def __init__(self, cacher, weights, result):
        self._cacher = cacher
        self._weights = weights
        self._result = result

    def run(self) -> None:
        for _ in range(20):
            variables = self._cacher.get_variables(["ab", "abc"])
        found = [variable.tolist() for variable in variables]
        self._result.write((found, self._weights.num_calls() < 20))
        lp.stop()


def make_cacher_program(path: str) -> lp.Program:
    program = lp.Program("cacher")
    result = program.add_node(lp.CourierNode(Result, path), label="result")
    weights = program.add_node(lp.CourierNode(Weights), label="weights")
    with program.group("cacher"):
        cacher = program.add_node(
            lp.CacherNode(weights, refresh_interval_ms=60_000, stale_after_ms=600_000)
        )
    program.add_node(lp.CourierNode(Reader, cacher, weights, result), label="reader")
    return program
