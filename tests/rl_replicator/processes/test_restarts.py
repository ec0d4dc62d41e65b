"""Restarts are limited, and follow increasingly long pauses."""

import inspect

from rl_replicator import MultiWorkerReplicator
from rl_replicator.processes.restarts import Restarts


def test_pauses_double_up_to_a_limit():
    restarts = Restarts(6, first_pause=1.0, longest_pause=10.0)
    assert [restarts.next_pause(lived=0) for _ in range(7)] == [1, 2, 4, 8, 10, 10, None]
    assert restarts.progress() == "restart 6 of 6"


def test_what_has_recovered_is_counted_anew():
    restarts = Restarts(2, first_pause=1.0, reset_after=60.0)
    pauses = [restarts.next_pause(lived) for lived in (0, 60, 60, 61, 0, 0)]
    assert pauses == [1, 2, None, 1, 2, None]


def test_a_job_that_waits_for_one_of_its_processes_does_not_recover():
    """It lives only for its start and a call that times out."""
    default = inspect.signature(MultiWorkerReplicator).parameters
    lived = default["start_timeout"].default + default["call_timeout"].default + 60
    restarts = Restarts(2)
    assert [restarts.next_pause(lived) for _ in range(3)] == [1, 2, None]


def test_many_restarts_do_not_overflow():
    restarts = Restarts(3000)
    assert [restarts.next_pause(lived=0) for _ in range(3000)][-1] == 30.0
