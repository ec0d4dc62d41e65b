"""Agents: actors, replay and learners, and the program that connects them."""
