"""Benchmarks against this project's peers. `python -m bench` runs them; no package imports them."""

import os

# As the command line sets them; both must be set before NumPy and TensorFlow are imported.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
