"""Layers whose computation depends on the replicas or on the precision of the step."""
