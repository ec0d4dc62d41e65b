"""Replicators by name, devices, and what an import costs."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

import rl_replicator as rr


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [
        ("single_device", "SingleDeviceReplicator", 1),
        ("single_device:xla", "SingleDeviceReplicator", 1),
        ("multi_device", "MultiDeviceReplicator", 4),
        ("1", "SingleDeviceReplicator", 1),
        ("2", "MultiDeviceReplicator", 2),
        ("multi_device:1", "MultiDeviceReplicator", 1),
    ],
)
def test_make(name, kind, count):
    replicator = rr.make(name)
    assert type(replicator).__name__ == kind
    assert replicator.num_replicas == count
    assert replicator.strategy.num_replicas_in_sync == count


def test_no_strategy_does_what_a_mesh_does():
    replicator = rr.make("mesh:data=2")
    with pytest.raises(rr.ConfigError, match="for Keras or an Estimator, .*; use multi_device"):
        _ = replicator.strategy


@pytest.mark.parametrize(
    "name",
    ["", "0", "single_device:2", "multi_device:", "multi_device:0", "multi_device:2x2", "gpu"],
)
def test_make_refuses(name):
    with pytest.raises(rr.ConfigError, match="^expected ") as error:
        rr.make(name)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, rr.UsageError)
    assert isinstance(error.value, ValueError)


def test_devices_by_name():
    devices = ("/cpu:2", "/cpu:0")
    replicator = rr.MultiDeviceReplicator(devices=devices)
    with replicator.scope():
        variable = tf.Variable(1.0)
    assert [v.device[-5:] for v in variable.values] == ["CPU:2", "CPU:0"]
    assert rr.MultiDeviceReplicator(devices=["/device:CPU:1", "cpu:3"]).num_replicas == 2
    for repeated in ((), ("/cpu:0", "/cpu:0"), ("/cpu:0", "/device:CPU:0")):
        with pytest.raises(rr.ConfigError, match="at least one device name, each once"):
            rr.MultiDeviceReplicator(devices=repeated)
    for missing in ("/gpu:7", "/cpu:4", "bogus", "/cpu:x"):
        match = rf"this machine \(.*/cpu:3.*\), got {missing}; name"
        with pytest.raises(rr.ConfigError, match=match):
            rr.MultiDeviceReplicator(devices=("/cpu:0", missing))
        with pytest.raises(rr.ConfigError, match=match):
            rr.MeshReplicator({"data": 2}, devices=("/cpu:0", missing))
    with pytest.raises(rr.ConfigError, match="expected 3 devices"):
        rr.MultiDeviceReplicator(3, devices)


@pytest.mark.cpu("replicas are on GPUs if there are any")
def test_too_late_to_split():
    with pytest.raises(rr.ConfigError, match="expected 64 logical CPU devices, found 4, and"):
        rr.make("multi_device:64")


def test_import_is_light():
    code = "import sys, rl_replicator as rr; rr.ConfigError; assert 'tensorflow' not in sys.modules"
    command = [sys.executable, "-c", code]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=True)
    assert set(rr.__all__) <= set(dir(rr))
    for name in rr.__all__:
        assert getattr(rr, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        rr.nothing  # noqa: B018
