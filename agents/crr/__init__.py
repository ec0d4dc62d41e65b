"""CRR: Critic Regularized Regression, which learns from recorded steps."""

from agents.crr.config import CRRConfig, PixelCRRConfig
from agents.runs.command import AgentCommand

command = AgentCommand("crr", CRRConfig, PixelCRRConfig, "agents.crr.agent:CRR")
