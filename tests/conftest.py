"""Splits the CPU, or a GPU, into four logical devices, before any test starts TensorFlow."""

import gc
import os
import signal
import sys
import threading

import pytest

from rl_replicator.processes import gpus

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Most tests expect a machine without GPUs, or use more replicas than it has GPUs. With this
# variable, which `make test-gpu` sets, the tests that compute in their own process use the first
# GPU.
_ON_GPU = os.environ.get("RL_REPLICATOR_TEST_GPU") == "1"
if not _ON_GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
# TensorFlow reads this on import: graphs in this process run without oneDNN. With oneDNN, every
# thread looks up again which operations have kernels, which takes a tenth of the tests' time.
# Programs in processes of their own use oneDNN, as users do.
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_leaves_onednn_out = os.environ.setdefault(_ONEDNN, "0") == "0"
gc.disable()  # Until the tests are collected: imports make many objects and little garbage.
# A command that a script starts with `&` ignores SIGINT, and the programs that tests interrupt
# would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure():
    if _ON_GPU and not gpus.visible():
        raise pytest.UsageError("expected a GPU for RL_REPLICATOR_TEST_GPU=1, found none")


def pytest_collection_finish(session):
    if _leaves_onednn_out:
        os.environ.pop(_ONEDNN)
    if "tensorflow" in sys.modules:  # Tests of other packages do not import it.
        import rl_replicator as rr

        rr.split_cpu(4)
        if _ON_GPU:
            _split_gpu()
    # Tracing creates many objects but little garbage: collections took a tenth of the time. The
    # objects that imports have created are not worth collecting either.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _split_gpu():
    """Splits the first GPU into four logical devices; hides it from processes that tests start."""
    import tensorflow as tf

    gpu = tf.config.list_physical_devices("GPU")[0]
    tf.config.set_visible_devices([gpu], "GPU")
    part = tf.config.LogicalDeviceConfiguration(memory_limit=1024)
    tf.config.set_logical_device_configuration(gpu, [part] * 4)
    tf.config.list_logical_devices()  # Initializes them now.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # The references compute in float32, and many tests compare bits.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    os.environ["TF_CUDNN_DETERMINISTIC"] = "1"


@pytest.fixture(scope="module", autouse=True)
def few_threads():
    """Frees the inputs that a module's tests used: each holds threads of its own and of tf.data."""
    yield
    if threading.active_count() > 30:
        gc.collect()


@pytest.fixture(autouse=True)
def not_deterministic():
    """Ends the determinism that a `--deterministic` run asks for in the process of its test."""
    yield
    if "tensorflow" in sys.modules:
        import tensorflow as tf
        from tensorflow.python.framework import config

        if config.is_op_determinism_enabled():
            config.disable_op_determinism()
            tf.random.set_seed(None)


@pytest.fixture
def sigint_ignored():
    """Ignores SIGINT, as a command that a script starts with `&` does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def plain_graphs():
    """Makes TensorFlow run graphs as they were traced, without optimizing them.

    For tests that compare results of large graphs after a few steps: graph optimization took a
    fifth of their time.

    Not for all tests: some faults come from the optimizations, such as sums whose terms are added
    in another order on each replica (tests/agents/learning/test_value_scale.py).
    """
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
