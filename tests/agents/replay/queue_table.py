"""A table for tests that read back what an adder wrote, and an adder."""

import reverb

from agents.replay.adder import NStepTransitionAdder
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


def make_adder(server, layout, n_step=1, **changes):
    """Makes an adder to a server or a table here; `changes` replace its other settings."""
    settings = {
        "discount": 0.9,
        "max_in_flight": 0,
        "initial_priority": 1.0,
        "on_wait": lambda seconds: None,
    }
    client = server.localhost_client() if isinstance(server, reverb.Server) else server
    return NStepTransitionAdder(client, layout, n_step=n_step, **(settings | changes))
