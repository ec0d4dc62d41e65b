"""TD3: Twin Delayed Deep Deterministic Policy Gradients."""

from agents.runs.command import AgentCommand
from agents.td3.config import DRQ_V2, PixelTD3Config, TD3Config

command = AgentCommand(
    "td3", TD3Config, PixelTD3Config, "agents.td3.agent:TD3", presets={"drq_v2": DRQ_V2}
)
