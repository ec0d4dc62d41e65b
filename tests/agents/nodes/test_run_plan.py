"""`--replicas`: what it means, and what is refused; the processors of a program."""

import os

import pytest

from agents.nodes.run_plan import Replicas
from agents.program import share_processors
from rl_replicator.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Replicas("1", 1, 1, 0)),
        ("2", Replicas("2", 1, 2, 0)),
        ("multi_worker:3", Replicas("multi_worker", 3, 3, 0)),
    ],
)
def test_what_is_written_and_what_it_means(text, expected):
    assert Replicas.parse(text, "processes", gpus=0) == expected


def test_every_gpu_of_every_process_is_a_replica():
    assert Replicas.parse("multi_worker:3", "ray", gpus=2).num_replicas == 6


@pytest.mark.parametrize(
    "text", ["multi_worker", "multi_worker:", "multi_worker:1", "multi_worker:x"]
)
def test_a_group_of_workers_has_a_number(text):
    with pytest.raises(ConfigError, match="expected multi_worker:N with at least 2"):
        Replicas.parse(text, "processes", gpus=0)


def test_threads_cannot_be_workers():
    with pytest.raises(
        ConfigError, match="expected --launch processes or ray, got threads"
    ) as error:
        Replicas.parse("multi_worker:2", "threads", gpus=0)
    assert "\n" not in str(error.value)


def test_an_operation_gets_half_of_the_processors_that_the_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(12))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS")
    share_processors()
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "6"
