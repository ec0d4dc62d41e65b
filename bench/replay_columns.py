"""Rows of one column against rows of five, in one Reverb table each, alternating.

    PYTHONPATH=. python bench/replay_columns.py

Prints processor time to insert a row and to sample a batch of 256, and the ratio of the two forms.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import reverb
import tensorflow as tf

OBSERVATION, ACTION, BATCH, ROWS, ROUNDS = 24, 6, 256, 5_000, 4
WIDTH = 2 * OBSERVATION + ACTION + 2
FORMS = {
    "one column": tf.TensorSpec([WIDTH]),
    "five columns": {
        "observation": tf.TensorSpec([OBSERVATION]),
        "action": tf.TensorSpec([ACTION]),
        "reward": tf.TensorSpec([]),
        "discount": tf.TensorSpec([]),
        "next_observation": tf.TensorSpec([OBSERVATION]),
    },
}


class Table:
    """A server, a writer and a sampler for one form of row."""

    def __init__(self, signature):
        table = reverb.Table(
            "rows",
            reverb.selectors.Prioritized(0.6),
            reverb.selectors.Fifo(),
            max_size=1_000_000,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature=signature,
        )
        self.server = reverb.Server([table])
        self.writer = reverb.Client(self.address).trajectory_writer(num_keep_alive_refs=1)
        self.row = tf.nest.map_structure(lambda s: np.ones(s.shape, np.float32), signature)
        self.signature = signature

    @property
    def address(self):
        return f"localhost:{self.server.port}"

    def insert(self):
        started = time.process_time()
        for i in range(ROWS):
            self.writer.append(self.row)
            item = tf.nest.map_structure(lambda column: column[-1], self.writer.history)
            self.writer.create_item("rows", 1.0, item)
            if i % 16 == 15:
                self.writer.flush(block_until_num_items=32)
        self.writer.flush()
        return (time.process_time() - started) / ROWS

    def sample(self):
        dataset = reverb.TrajectoryDataset(
            self.address,
            "rows",
            dtypes=tf.nest.map_structure(lambda s: s.dtype, self.signature),
            shapes=tf.nest.map_structure(lambda s: s.shape, self.signature),
            max_in_flight_samples_per_worker=2 * BATCH,
            num_workers_per_iterator=1,
        )
        iterator = iter(dataset.batch(BATCH, drop_remainder=True).prefetch(2))
        next(iterator)
        started = time.process_time()
        for _ in range(100):
            next(iterator)
        return (time.process_time() - started) / 100


def main():
    tables = {name: Table(signature) for name, signature in FORMS.items()}
    times = {name: {"insert": [], "sample": []} for name in FORMS}
    for _ in range(ROUNDS):
        for name, table in tables.items():
            times[name]["insert"].append(table.insert() * 1e6)
            times[name]["sample"].append(table.sample() * 1e3)
    best = {name: {what: min(values) for what, values in t.items()} for name, t in times.items()}
    for name, figures in best.items():
        print(
            f"{name}: insert {figures['insert']:.0f} us a row, "
            f"sample {figures['sample']:.2f} ms a batch of {BATCH}"
        )
    one, five = best["one column"], best["five columns"]
    print(
        f"one : five columns, insert {one['insert'] / five['insert']:.2f}, "
        f"sample {one['sample'] / five['sample']:.2f}"
    )


if __name__ == "__main__":
    main()
