"""Rows of an n-step table in Reverb: items and chunks of several lengths, columns, priorities.

    python -m bench.replay_rows

Each form has a server, all in this process, so that processor time includes the servers'. Rows are
those of cheetah:run (17 numbers, 6 actions). The agents store one column, in items of 8 rows, or,
when they sample by priority, in items of one row in chunks of 8. "1 row a chunk" stores and sends
each row alone, "five columns" has a column for each part of a transition. A draw of items of n rows
serves n batches. Memory is the growth of this process while rows are inserted. "rows of one number"
shows the fixed cost of an item. Priorities are written for 16 batches of 256, as in a call of the
learner, through the agents' writer and through Reverb's Python client.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from agents.replay.priorities import PriorityWriter
from agents.replay.transitions import TABLE
from bench import harness

OBSERVATION, ACTION, N_STEP, BATCH = 17, 6, 5, 256
WIDTH = 2 * OBSERVATION + ACTION + 2
ROWS, BATCHES, CALLS, STEPS_PER_CALL = 6_000, 30, 8, 16
BYTES = harness.Unit("bytes a row", more_is_better=False)
AGENTS = "8 rows a chunk"


def make_rows(width: int) -> np.ndarray:
    """Returns rows that share observations like those of an episode; zeros for other widths."""
    if width != WIDTH:
        return np.zeros((ROWS, width), np.float32)
    random = np.random.default_rng(0)
    steps = random.normal(0, 0.1, (ROWS + N_STEP, OBSERVATION))
    observations = np.sin(np.cumsum(steps, axis=0))
    numbers = random.uniform(-1, 1, (ROWS, ACTION + 2))
    parts = [observations[:-N_STEP], numbers, observations[N_STEP:]]
    return np.concatenate(parts, axis=1).astype(np.float32)


class Form:
    """A server with a table, and a writer."""

    def __init__(self, chunk_length: int, widths: tuple[int, ...] = (WIDTH,), item_length: int = 1):
        """Starts the server.

        Args:
          chunk_length: rows per chunk.
          widths: size of each column of a row.
          item_length: rows per item.
        """
        self.item_length = item_length
        outer = [item_length] if item_length > 1 else []
        specs = [tf.TensorSpec([*outer, width], tf.float32) for width in widths]
        self.signature = specs[0] if len(specs) == 1 else tuple(specs)
        self.server = reverb.Server(
            [
                reverb.Table(
                    TABLE,
                    reverb.selectors.Prioritized(0.6),
                    reverb.selectors.Fifo(),
                    max_size=10_000_000,
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    signature=self.signature,
                )
            ]
        )
        rows = np.split(make_rows(sum(widths)), np.cumsum(widths)[:-1], axis=1)
        self.rows = [row[0] if len(row) == 1 else row for row in zip(*rows, strict=True)]
        self.address = f"localhost:{self.server.port}"
        self.writer = reverb.Client(self.address).trajectory_writer(chunk_length)
        for path in [()] if len(widths) == 1 else [(i,) for i in range(len(widths))]:
            self.writer.configure(
                path, num_keep_alive_refs=chunk_length, max_chunk_length=chunk_length
            )
        self.batches: Iterator[Any] | None = None

    def insert(self) -> None:
        """Inserts all rows, as the agents do."""
        for i, row in enumerate(self.rows):
            self.writer.append(row)
            if (i + 1) % self.item_length == 0:
                self.writer.create_item(TABLE, 1.0, self._newest())
            if i % 16 == 15:
                self.writer.flush(block_until_num_items=32 // self.item_length)
        self.writer.flush()

    def _newest(self):
        where = -1 if self.item_length == 1 else slice(-self.item_length, None)
        return tf.nest.map_structure(lambda column: column[where], self.writer.history)

    def insert_and_weigh(self) -> Mapping[harness.Unit, float]:
        """Inserts all rows. This method is a side that also measures memory."""
        before = resident_bytes()
        figures = harness.clocked(self.insert, ROWS, "rows")()
        return {**figures, BYTES: max(1.0, (resident_bytes() - before) / ROWS)}

    def sample(self, count: int = BATCHES):
        """Samples `count` batches of items; returns the keys of the last one."""
        if self.batches is None:
            dataset = reverb.TrajectoryDataset(
                self.address,
                TABLE,
                dtypes=tf.nest.map_structure(lambda spec: spec.dtype, self.signature),
                shapes=tf.nest.map_structure(lambda spec: spec.shape, self.signature),
                max_in_flight_samples_per_worker=2 * BATCH,
                num_workers_per_iterator=1,
            )
            self.batches = iter(dataset.batch(BATCH, drop_remainder=True).prefetch(2))
        for _ in range(count):
            batch = next(self.batches)
        return batch.info.key


def resident_bytes() -> int:
    """Returns the resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def priority_sides(form: Form) -> dict[str, harness.Side]:
    """Returns the two ways to write priorities."""
    keys = tf.stack([form.sample(1) for _ in range(STEPS_PER_CALL)])
    priorities = tf.random.uniform(keys.shape)
    client = reverb.Client(form.address)

    def write() -> None:
        writer = PriorityWriter([form.address])
        for _ in range(CALLS):
            writer.write([(keys, priorities)])
        writer.close()

    def mutate() -> None:
        flat = keys.numpy().ravel().tolist(), priorities.numpy().ravel().tolist()
        for _ in range(CALLS):
            client.mutate_priorities(TABLE, dict(zip(*flat, strict=True)))

    amount = CALLS * STEPS_PER_CALL * BATCH
    return {
        "priorities, agents' writer": harness.clocked(write, amount, "priorities"),
        "priorities, Python client": harness.clocked(mutate, amount, "priorities"),
    }


def main() -> None:
    """Measures inserting, sampling and priorities."""
    options = harness.parser("replay_rows", __doc__).parse_args()
    report = harness.Report("replay_rows", options)
    forms = {f"{n} row{'s' * (n > 1)} a chunk": Form(n) for n in (1, 4, 8, 16, 32)}
    forms["five columns, 8 rows a chunk"] = Form(8, (OBSERVATION, ACTION, 1, 1, OBSERVATION))
    forms["rows of one number, 16 a chunk"] = Form(16, (1,))
    forms |= {f"items of {n} rows": Form(n, item_length=n) for n in (4, 8, 16)}
    for what, sides in (
        ("insert", {name: form.insert_and_weigh for name, form in forms.items()}),
        (
            "sample",
            {
                name: harness.clocked(form.sample, form.item_length * BATCHES, "batches")
                for name, form in forms.items()
            },
        ),
    ):
        named = {f"{what}, {name}": side for name, side in sides.items()}
        base = f"{what}, 1 row a chunk"
        peers = {name: base for name in named if name != base}
        report.add(harness.measure(named, options.rounds), peers)
    sides = priority_sides(forms[AGENTS])
    ours, peer = sides
    report.add(harness.measure(sides, options.rounds), {ours: peer})
    report.write()
    harness.end()


if __name__ == "__main__":
    main()
