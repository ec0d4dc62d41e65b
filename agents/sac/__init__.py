"""SAC: Soft Actor-Critic."""

from agents.runs.command import AgentCommand
from agents.sac.config import PixelSACConfig, SACConfig

command = AgentCommand("sac", SACConfig, PixelSACConfig, "agents.sac.agent:SAC")
