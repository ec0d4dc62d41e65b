"""Splits the CPU into four logical devices, before any test starts TensorFlow."""

import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def pytest_collection_finish(session):
    if "tensorflow" in sys.modules:  # Tests of other packages do without it.
        import rl_replicator as rr

        rr.split_cpu(4)
    # Traces make many objects and little garbage: a tenth of the time went into collections.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
