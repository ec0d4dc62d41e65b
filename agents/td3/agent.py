"""TD3: its networks and its learner, on top of the parts that off-policy agents share."""

import rl_replicator as rr
from agents.learning.losses import TDLoss, find_td_loss
from agents.off_policy_agent import OffPolicyAgent
from agents.td3.learner import TD3Learner


class TD3(OffPolicyAgent):
    """The TD3 agent (Fujimoto et al. 2018, arXiv:1802.09477)."""

    trains_batch_norm = True

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        self.make_td_loss()

    def make_td_loss(self) -> TDLoss:
        """Returns the critics' loss: TD errors [B, 2] -> losses [B, 2], one for each error."""
        return find_td_loss(self.config.td_loss)

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> TD3Learner:
        """See `OffPolicyAgent`."""
        online, target = self.make_networks(self.make_twin_critic)
        return TD3Learner(
            self.config,
            online=online,
            target=target,
            total_steps=total_steps,
            augment=self.observations.augment,
            replicator=replicator,
            td_loss=self.make_td_loss(),
            scale=self.make_scale(),
        )
