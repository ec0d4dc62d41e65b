"""Four programs as users of DeepMind's Launchpad write them, without extensions of ours."""

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


# -- producers and a consumer -------------------------------------------------------------


class Producer:
    def work(self, context: int) -> int:
        return context * context


class Consumer:
    def __init__(self, producers, result):
        self._producers = producers
        self._result = result

    def run(self) -> None:
        futures = [
            producer.futures.work(context) for context, producer in enumerate(self._producers)
        ]
        self._result.write([future.result() for future in futures])
        lp.stop()


def make_consumer_program(path: str, num_producers: int = 3) -> lp.Program:
    program = lp.Program("consumer_producers")
    with program.group("result"):
        result = program.add_node(lp.CourierNode(Result, path))
    with program.group("producer"):
        producers = [program.add_node(lp.CourierNode(Producer)) for _ in range(num_producers)]
    node = lp.CourierNode(Consumer, producers=producers, result=result)
    program.add_node(node, label="consumer")
    return program


# -- batching -----------------------------------------------------------------------------


class BatchedServer:
    def __init__(self, batch_size: int):
        self._sizes = []
        self.compute = lp.batched_handler(batch_size=batch_size)(self.compute)

    def compute(self, values):
        self._sizes.append(len(values))
        return np.asarray(values) * 2

    def largest_batch(self) -> int:
        return max(self._sizes)


class BatchedClient:
    def __init__(self, server, result):
        self._server = server
        self._result = result

    def run(self) -> None:
        futures = [self._server.futures.compute(np.float32(i)) for i in range(4)]
        doubled = [float(future.result()) for future in futures]
        self._result.write((doubled, self._server.largest_batch() > 1))
        lp.stop()


def make_batching_program(path: str) -> lp.Program:
    program = lp.Program("batching")
    with program.group("result"):
        result = program.add_node(lp.CourierNode(Result, path))
    server = program.add_node(lp.CourierNode(BatchedServer, batch_size=4), label="server")
    program.add_node(lp.CourierNode(BatchedClient, server, result), label="client")
    return program


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
            lp.CacherNode(weights, refresh_interval_ms=500, stale_after_ms=5000)
        )
    program.add_node(lp.CourierNode(Reader, cacher, weights, result), label="reader")
    return program
