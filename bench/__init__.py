"""Benchmarks: this project beside its peers. `python -m bench` runs them; nothing imports them."""

import os

# As the command line sets them; both must be set before NumPy and TensorFlow are imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
