"""Inspects the graphs that TensorFlow has traced, and the nests that traced functions return."""
