"""TD3: its learner, on top of the parts that off-policy agents share."""

from agents.off_policy_agent import TwinCriticAgent
from agents.td3.learner import TD3Learner


class TD3(TwinCriticAgent):
    """The TD3 agent (Fujimoto et al. 2018, arXiv:1802.09477)."""

    learner_type = TD3Learner
