"""DQN: deep Q-learning with distributions of the return, for discrete actions."""

from agents.dqn.config import RECURRENT, DQNConfig, PixelDQNConfig
from agents.runs.command import AgentCommand

command = AgentCommand(
    "dqn",
    DQNConfig,
    PixelDQNConfig,
    "agents.dqn.agent:DQN",
    presets={"recurrent": RECURRENT},
)
