"""Imports what the nodes of a run need; imported once, in the process that nodes are forked from.

None of it starts a thread, initialises TensorFlow or loads OpenGL.
"""

import environments
from agents import off_policy_agent, program

__all__ = ["off_policy_agent", "program"]

environments.names()  # Imports dm_control, without OpenGL.
