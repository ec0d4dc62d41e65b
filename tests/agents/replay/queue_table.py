"""A table for tests that read back what an adder wrote."""

import reverb

from agents.replay.table import TABLE


def make_table(layout, rate_limiter=None, max_times_sampled=1):
    """Makes a table that gives each item `max_times_sampled` times, the oldest first."""
    return reverb.Table(
        TABLE,
        reverb.selectors.Fifo(),
        reverb.selectors.Fifo(),
        max_size=10_000,
        rate_limiter=rate_limiter or reverb.rate_limiters.MinSize(1),
        max_times_sampled=max_times_sampled,
        signature=layout.signature,
    )
