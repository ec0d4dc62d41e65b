"""TD3 with another loss, which has its own setting. `docs/agents.md` explains it."""

import dataclasses

import tensorflow as tf

from agents.runs.command import AgentCommand
from agents.td3.agent import TD3
from agents.td3.config import TD3Config


@dataclasses.dataclass(frozen=True)
class ExpectileConfig(TD3Config):
    """Hyper-parameters of TD3 with an expectile loss."""

    expectile: float = 0.4
    """Weight of positive TD errors, from 0 to 1; that of negative ones is 1 minus this."""


class ExpectileTD3(TD3):
    """TD3 whose critics overestimate less, with an expectile below 0.5."""

    def make_td_loss(self):
        """Returns the critics' loss: TD errors [B, 2] -> losses [B, 2]."""
        loss, tau = super().make_td_loss(), self.config.expectile  # That of --agent.td-loss.
        return lambda td_errors: tf.where(td_errors > 0, tau, 1 - tau) * loss(td_errors)


command = AgentCommand("expectile_td3", ExpectileConfig, None, f"{__name__}:ExpectileTD3")
