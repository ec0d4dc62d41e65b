"""A table for tests that read back what an adder wrote, and an adder."""

import numpy as np
import reverb
from acme import specs

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


def with_vector(frame):
    """An observation of a frame, or its spec, and a vector of three numbers that depend on it."""
    if isinstance(frame, specs.Array):
        return {"pixels": frame, "vector": specs.Array((3,), np.float32)}
    return {"pixels": frame, "vector": np.ravel(frame)[:3].astype(np.float32) / 7}


def make_adder(server, layout, n_step=1, **changes):
    """Makes an adder to a server; `changes` replace its other settings."""
    settings = {
        "discount": 0.9,
        "max_in_flight": 0,
        "initial_priority": 1.0,
        "on_wait": lambda seconds: None,
    }
    client = None if server is None else reverb.Client(f"localhost:{server.port}")
    return NStepTransitionAdder(client, layout, n_step=n_step, **(settings | changes))
