"""What can be checked about GPUs without one: the graph, its placement, and the environment."""

import collections
import subprocess
import sys
import types

import pytest
import sonnet as snt
import tensorflow as tf
from tensorflow.experimental import dtensor

import rl_replicator as rr
from rl_replicator.backends import devices, multi_device
from rl_replicator.backends.mesh import layouts
from rl_replicator.backends.mesh import step as mesh_step
from rl_replicator.jobs import supervisor

GPUS = ("/gpu:0", "/gpu:1")


def trace(replicator):
    """Returns the nodes of a training step with an all-gather, as counts by (operation, device)."""
    with replicator.scope():
        model = snt.nets.MLP([4, 1])
        model(tf.zeros([1, 3]))
        optimizer = replicator.wrap_optimizer(rr.optimizers.Adam(0.1))

    def step_fn(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return rr.collectives.all_gather(loss)

    return operations(replicator, step_fn, tf.ones([2, 3]))


def operations(replicator, step_fn, batch):
    """Returns the nodes of a step, as counts by (operation, device)."""
    inputs = replicator.make_inputs(lambda _: tf.data.Dataset.from_tensors(batch))
    step = replicator.replicate(step_fn, inputs, steps_per_call=2)
    counts = collections.Counter()
    for function in step._compiled.graph.as_graph_def().library.function:
        for node in function.node_def:
            counts[node.op, node.device.rpartition("device:")[-1]] += 1
    return counts


@pytest.fixture
def absent_gpus(monkeypatch):
    """Two GPUs, for which steps can be traced."""
    if tf.config.list_physical_devices("GPU"):
        pytest.skip("traces absent GPUs")
    monkeypatch.setattr(devices, "_available", lambda: GPUS)


@pytest.mark.usefixtures("absent_gpus")
def test_gpus_add_up_with_nccl():
    counts = trace(rr.MultiDeviceReplicator(devices=GPUS))
    sums = {device: n for (op, device), n in counts.items() if op == "NcclAllReduce"}
    # Each GPU sums the gradients and the gathered values.
    assert sums.keys() == {"GPU:0", "GPU:1"} and sums["GPU:0"] == sums["GPU:1"] >= 2
    # Each replica computes, and updates its copy of the variables, on its own GPU.
    for op in ("MatMul", "ResourceApplyAdam"):
        assert counts[op, "GPU:0"] == counts[op, "GPU:1"] > 0


@pytest.mark.usefixtures("absent_gpus")
def test_the_reduction_can_be_chosen():
    ops = tf.distribute.HierarchicalCopyAllReduce()
    replicator = rr.MultiDeviceReplicator(devices=GPUS, cross_device_ops=ops)
    assert not [op for op, _ in trace(replicator) if op == "NcclAllReduce"]
    assert replicator.strategy.extended._cross_device_ops is ops


def test_a_mesh_of_gpus_refuses_what_lives_on_the_host():
    mesh = types.SimpleNamespace(device_type=lambda: "GPU")
    with pytest.raises(rr.ConfigError, match="got int32 for variable 'count'; use"):
        layouts.check_type(mesh, tf.int32, (tf.int32, tf.string), "variable 'count'")
    layouts.check_type(mesh, tf.int64, (tf.int32, tf.string), "variable 'count'")
    with pytest.raises(rr.ConfigError, match="got string for the input"):
        mesh_step.check_specs([tf.TensorSpec([2], tf.string)], mesh)
    mesh.device_type = lambda: "CPU"
    layouts.check_type(mesh, tf.int32, (tf.int32, tf.string), "variable 'count'")


def test_a_mesh_of_gpus_takes_a_dynamic_loss_scale(monkeypatch):
    replicator = rr.make("mesh:data=2")
    monkeypatch.setattr(dtensor.Mesh, "device_type", lambda mesh: "GPU")
    with replicator.scope():
        replicator.wrap_optimizer(snt.optimizers.SGD(0.1), loss_scale="dynamic")


def test_cpus_add_up_on_one_device():
    counts = trace(rr.make("multi_device:2"))
    assert not [op for op, _ in counts if "Nccl" in op or "Collective" in op]


def test_gpu_memory_grows(monkeypatch):
    grown = []
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"{kind}:0", f"{kind}:1"])

    def set_memory_growth(gpu, enable):
        if gpu == "GPU:0":
            raise ValueError("Cannot set memory growth on device when virtual devices configured")
        grown.append((gpu, enable))

    monkeypatch.setattr(tf.config.experimental, "set_memory_growth", set_memory_growth)
    devices.grow_gpu_memory()  # The limits that the program has set for GPU 0 stay.
    assert grown == [("GPU:1", True)]
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    devices.grow_gpu_memory()
    assert len(grown) == 1


@pytest.mark.parametrize(
    ("parts", "names", "sums"),
    [
        ([], (), tf.distribute.ReductionToOneDevice),  # The program hides the machine's GPUs.
        ([None, None], GPUS, tf.distribute.NcclAllReduce),
        ([2], GPUS, tf.distribute.ReductionToOneDevice),  # NCCL accepts each GPU only once.
        ([None, 2], (*GPUS, "/gpu:2"), tf.distribute.ReductionToOneDevice),
    ],
)
def test_a_program_can_hide_and_split_gpus(monkeypatch, parts, names, sums):
    configurations = [[None] * count if count else None for count in parts]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [0, 1])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: range(len(parts)))
    monkeypatch.setattr(
        tf.config, "get_logical_device_configuration", lambda gpu: configurations[gpu]
    )
    monkeypatch.setattr(devices, "grow_gpu_memory", lambda: None)
    monkeypatch.setattr(devices, "split_cpu", lambda count: None)
    assert devices.gpus() == names
    assert devices.choose(None, None) == (names or tuple(f"/cpu:{i}" for i in range(4)))
    assert type(multi_device._cross_device_ops(names or ("/cpu:0", "/cpu:1"))) is sums


@pytest.mark.parametrize(
    ("visible", "workers", "expected"),
    [
        ("", 2, [None, None]),
        ("0,1", 2, ["0", "1"]),
        ("3,5,7", 1, ["3,5,7"]),
        ("-1", 2, [None, None]),  # Hides all GPUs.
        ("0, GPU-6f,-1,2", 2, ["0", "GPU-6f"]),  # CUDA ignores what follows an invalid name.
        ("0,1,2,3,4", 2, ["0,1", "2,3"]),  # Equal shares, for equal numbers of replicas.
    ],
)
def test_workers_divide_the_gpus(monkeypatch, visible, workers, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    shares = supervisor.shares(workers)
    assert [share.get("CUDA_VISIBLE_DEVICES") for share in shares] == expected


def test_every_process_of_a_job_gets_its_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    tasks = supervisor.environments(2, 1)
    found = [environment["CUDA_VISIBLE_DEVICES"] for environment in tasks.values()]
    assert found == ["", "0,1", "2,3", ""]  # Chief, workers, parameter server.


def test_more_workers_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    command = ["-m", "rl_replicator.jobs", "--workers", "2", "--", "true"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "expected at most 1, one for each GPU" in line and "CUDA_VISIBLE_DEVICES=" in line
