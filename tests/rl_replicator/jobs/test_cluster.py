"""TF_CONFIG and its mistakes."""

import json

import pytest

import rl_replicator as rr

TWO = {"worker": ["a:1", "b:2"]}


def test_reads_tf_config():
    addresses = {"ps": ["c:3"], "worker": ["a:1", "b:2"], "chief": ["d:4"]}
    text = json.dumps({"cluster": addresses, "task": {"type": "worker", "index": 1}})
    cluster = rr.Cluster.from_environment({"TF_CONFIG": text})
    assert cluster.tasks == (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0))
    assert cluster.own_address == "b:2" and cluster.address("chief", 0) == "d:4"


def test_reads_what_it_writes_from_the_real_environment(monkeypatch):
    cluster = rr.Cluster.of_workers(["a:1", "b:2"], 1)
    monkeypatch.setenv("TF_CONFIG", cluster.to_json())
    assert rr.Cluster.from_environment() == cluster


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"expected TF_CONFIG in the environment, found none; start .*rl_replicator.jobs"),
        ("{", r"expected TF_CONFIG such as .* got '\{' \(JSONDecodeError"),
        ("[]", r"expected TF_CONFIG such as .*; correct it"),
        ('{"cluster": {"worker": ["a:1"]}}', "KeyError: 'task'"),
        ('{"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}}', "TypeError"),
        ('{"cluster": {}, "task": {"type": "worker", "index": Infinity}}', "OverflowError"),
        (
            '{"cluster": {"worker": "a:1"}, "task": {"type": "worker", "index": 0}}',
            "expected a list of addresses for 'worker', got 'a:1'",
        ),
    ],
)
def test_text_that_is_no_configuration(text, message):
    with pytest.raises(rr.ConfigError, match=message) as caught:
        rr.Cluster.from_environment({"TF_CONFIG": text})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("addresses", "task", "message"),
    [
        (TWO, ("worker", 2), "this process's task to be one of worker 0, worker 1, got worker 2"),
        (TWO, ("chief", 0), "got chief 0"),
        ({}, ("worker", 0), "to be one of the cluster"),
        ({"worker": []}, ("worker", 0), "expected a list of addresses for 'worker'"),
        ({"worker": "a:1"}, ("worker", 0), "expected a list of addresses for 'worker', got 'a:1'"),
        ({"master": ["a:1"]}, ("master", 0), "expected tasks of type chief, worker, ps"),
        ({"worker": ["a"]}, ("worker", 0), "expected host:port for worker 0, got 'a'"),
        ({"worker": ["a:"]}, ("worker", 0), "expected host:port"),
        ({"worker": [":1"]}, ("worker", 0), "expected host:port"),
        ({"worker": ["a:0"]}, ("worker", 0), "expected host:port"),
        ({"worker": ["a:65536"]}, ("worker", 0), "expected host:port"),
        ({"worker": [7]}, ("worker", 0), "expected host:port for worker 0, got 7"),
        ({"worker": ["http://a:1"]}, ("worker", 0), "expected host:port for worker 0, got 'http:"),
        (
            {"worker": ["a:1"]},
            ("evaluator", 0),
            "got the evaluator, which .*: run 'rl-replicator ev",
        ),
        ({"worker": ["a:1", "a:1"]}, ("worker", 0), "got a:1 for both worker 0 and worker 1"),
    ],
)
def test_clusters_that_cannot_be(addresses, task, message):
    with pytest.raises(rr.ConfigError, match=message):
        rr.Cluster(addresses, *task)
