"""`--replicas`: what it means, and what is refused; the processors of a program."""

import os

import pytest

from agents.nodes.run_plan import Replicas
from agents.program import share_processors
from rl_replicator.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "gpus", "expected"),
    [
        ("1", 0, Replicas("1", 1, 1, 0)),
        ("2", 0, Replicas("2", 1, 2, 0)),
        ("multi_worker:3", 0, Replicas("multi_worker", 3, 3, 0)),
        # Every GPU of every process is a replica.
        ("multi_worker:3", 2, Replicas("multi_worker", 3, 6, 2)),
    ],
)
def test_what_is_written_and_what_it_means(text, gpus, expected):
    assert Replicas.parse(text, "processes", gpus) == expected


@pytest.mark.parametrize(
    ("text", "launch", "message"),
    [
        *[
            (text, "processes", "expected multi_worker:N with at least 2")
            for text in ("multi_worker", "multi_worker:", "multi_worker:1", "multi_worker:x")
        ],
        ("multi_worker:2", "threads", "expected --launch processes or ray, got threads"),
    ],
)
def test_a_group_of_workers_has_a_number_and_processes(text, launch, message):
    with pytest.raises(ConfigError, match=message) as error:
        Replicas.parse(text, launch, gpus=0)
    assert "\n" not in str(error.value)


def test_an_operation_gets_half_of_the_processors_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(12))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    share_processors()
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "6"
