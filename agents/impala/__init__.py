"""IMPALA: an actor-critic that learns from a queue of unrolls, corrected by V-trace."""

from agents.impala.config import ImpalaConfig, PixelImpalaConfig
from agents.runs.command import AgentCommand

command = AgentCommand("impala", ImpalaConfig, PixelImpalaConfig, "agents.impala.agent:Impala")
