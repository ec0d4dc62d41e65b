"""MR.Q: one agent for state and pixels, continuous and discrete actions, on learned features."""

from agents.mrq.config import MRQConfig, PixelMRQConfig
from agents.runs.command import AgentCommand

command = AgentCommand("mrq", MRQConfig, PixelMRQConfig, "agents.mrq.agent:MRQ")
