"""Splits the CPU, or a GPU, into four logical devices, before any test starts TensorFlow."""

import gc
import os
import signal
import sys
import threading

import pytest

from rl_replicator.processes import gpus

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Most tests expect a machine without GPUs, or more replicas than it has GPUs. With this variable,
# the tests that compute in their own process do so on the first GPU: `make test-gpu`.
_ON_GPU = os.environ.get("RL_REPLICATOR_TEST_GPU") == "1"
if not _ON_GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# Programs in forks cannot start again, and many tests compare every bit of two environments.
os.environ["RL_REPLICATOR_ALLOCATOR"] = "system"
# TensorFlow reads this when it is imported: in this process, graphs do without oneDNN. With it,
# every thread looks up anew which operations it has kernels for, a tenth of the tests' time.
# Programs in processes of their own have it, as users do.
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_leaves_onednn_out = os.environ.setdefault(_ONEDNN, "0") == "0"
gc.disable()  # Until the tests are collected: imports make many objects and little garbage.
# A script's `&` has what it starts ignore Ctrl-C, and programs that tests interrupt inherited that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
    if _ON_GPU and not gpus.visible():
        raise pytest.UsageError("expected a GPU for RL_REPLICATOR_TEST_GPU=1, found none")


def pytest_collection_finish(session):
    if _leaves_onednn_out:
        os.environ.pop(_ONEDNN)
    if "tensorflow" in sys.modules:  # Tests of other packages do without it.
        import rl_replicator as rr

        rr.split_cpu(4)
        if _ON_GPU:
            _split_gpu()
    # Traces make many objects and little garbage: a tenth of the time went into collections. Nor is
    # what imports have left behind worth one.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _split_gpu():
    """Splits the first GPU in four, and hides it from the processes that tests start."""
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_visible_devices([gpu], "GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    tf.config.set_logical_device_configuration(gpu, [part] * 4)
    tf.config.list_logical_devices()  # TensorFlow opens them now.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # The references compute in float32, and many tests compare bits.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    os.environ["TF_CUDNN_DETERMINISTIC"] = "1"


@pytest.fixture(scope="module", autouse=True)
def few_threads():
    """Frees the inputs that a module's tests used: each has threads of ours and of tf.data."""
    yield
    if threading.active_count() > 30:
        gc.collect()


@pytest.fixture
def sigint_ignored():
    """SIGINT is ignored, as in what a script starts with `&`."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def plain_graphs():
    """TensorFlow runs graphs as they were traced.

    For tests that compare the numbers of large graphs after a few steps: optimizing the graphs took
    a fifth of their time.
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
