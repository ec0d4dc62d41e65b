"""A program as users of DeepMind's Launchpad write them, without extensions of ours."""

from __future__ import annotations

import numpy as np

import launchpad as lp


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
