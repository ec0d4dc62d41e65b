"""Rows of an n-step table in chunks of several lengths, one Reverb table each, in turn.

    PYTHONPATH=. python bench/replay_chunks.py

Prints, for each length of a chunk: processor time to insert a row, as fast as possible and at 2,500
rows/s; resident memory of a row; processor time to sample a batch of 256. The last table has rows
of one number: what an item takes whatever it holds.
"""

import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import reverb
import tensorflow as tf

OBSERVATION, ACTION, N_STEP, BATCH = 17, 6, 5, 256  # cheetah:run
ROWS, SLOW_ROWS, PAUSE, ROUNDS = 60_000, 1_000, 400e-6, 4
CASES = ((1, True), (4, True), (8, True), (16, True), (32, True), (16, False))


def make_rows(has_data: bool) -> np.ndarray:
    """Rows that share observations as those of an episode do."""
    if not has_data:
        return np.zeros((5000, 1), np.float32)
    random = np.random.default_rng(0)
    steps = random.normal(0, 0.1, (5000 + N_STEP, OBSERVATION))
    observations = np.sin(np.cumsum(steps, axis=0))
    numbers = random.uniform(-1, 1, (5000, ACTION + 2))
    parts = [observations[:-N_STEP], numbers, observations[N_STEP:]]
    return np.concatenate(parts, axis=1).astype(np.float32)


class Table:
    """A server with a table, and a writer with chunks of one length."""

    def __init__(self, chunk_length: int, has_data: bool):
        self.chunk_length, self.rows = chunk_length, make_rows(has_data)
        self.width = self.rows.shape[1]
        self.server = reverb.Server(
            [
                reverb.Table(
                    "replay",
                    reverb.selectors.Prioritized(0.6),
                    reverb.selectors.Fifo(),
                    max_size=10_000_000,
                    rate_limiter=reverb.rate_limiters.MinSize(1),
                    signature=tf.TensorSpec([self.width], tf.float32),
                )
            ]
        )
        client = reverb.Client(f"localhost:{self.server.port}")
        self.writer = client.trajectory_writer(num_keep_alive_refs=chunk_length)
        self.writer.configure((), num_keep_alive_refs=chunk_length, max_chunk_length=chunk_length)
        self.sample_ms = float("inf")

    def insert(self, count: int, pause: float = 0.0) -> float:
        """Returns microseconds of processor time for a row, without the pauses."""
        started = time.process_time()
        for i in range(count):
            self.writer.append(self.rows[i % len(self.rows)])
            self.writer.create_item("replay", 1.0, self.writer.history[-1])
            if i % 16 == 15:
                self.writer.flush(block_until_num_items=32)
            until = time.perf_counter() + pause
            while pause and time.perf_counter() < until:
                pass
        self.writer.flush()
        return ((time.process_time() - started) / count - pause) * 1e6

    def fill(self) -> None:
        """Inserts all rows, and measures time and memory."""
        self.insert(100)
        before = resident_bytes()
        self.fast_us = self.insert(ROWS)
        self.row_bytes = (resident_bytes() - before) / ROWS
        self.slow_us = self.insert(SLOW_ROWS, PAUSE)

    def sample(self) -> None:
        """Samples batches; the best round counts."""
        dataset = reverb.TrajectoryDataset(
            f"localhost:{self.server.port}",
            "replay",
            dtypes=tf.float32,
            shapes=tf.TensorShape([self.width]),
            max_in_flight_samples_per_worker=2 * BATCH,
            num_workers_per_iterator=1,
        )
        batches = iter(dataset.batch(BATCH, drop_remainder=True).prefetch(2))
        next(batches)
        started = time.process_time()
        for _ in range(100):
            next(batches)
        self.sample_ms = min(self.sample_ms, (time.process_time() - started) * 10)


def resident_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Prints the table."""
    tables = [Table(*case) for case in CASES]
    for table in tables:
        table.fill()
    for _ in range(ROUNDS):
        for table in tables:
            table.sample()
    for table in tables:
        print(
            f"chunks of {table.chunk_length:2}, rows of {4 * table.width:3} bytes: insert "
            f"{table.fast_us:.0f} us, at 2,500 rows/s {table.slow_us:.0f} us; "
            f"{table.row_bytes:.0f} bytes a row; sample {table.sample_ms:.2f} ms a batch"
        )


if __name__ == "__main__":
    main()
