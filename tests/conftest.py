"""Splits the CPU into four logical devices, before any test starts TensorFlow."""

import gc
import os
import signal
import sys
import threading

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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


def pytest_collection_finish(session):
    if _leaves_onednn_out:
        os.environ.pop(_ONEDNN)
    if "tensorflow" in sys.modules:  # Tests of other packages do without it.
        import rl_replicator as rr

        rr.split_cpu(4)
    # Traces make many objects and little garbage: a tenth of the time went into collections.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


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
