"""D4PG: Distributed Distributional Deterministic Policy Gradients (arXiv:1804.08617)."""
