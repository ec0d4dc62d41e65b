"""DDPG (Lillicrap et al. 2015, arXiv:1509.02971) in one file. `docs/agents.md` explains it.

cd docs/examples
rl-replicator train ddpg_agent:command --env cartpole:balance --steps 30000
"""

import dataclasses

import tensorflow as tf

from agents.config import NoiseSettings, OffPolicyConfig, PixelSettings, PolicySettings
from agents.learning.losses import normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.networks.actor_critic import ScalarCritic, preactivation_penalty
from agents.off_policy_agent import OffPolicyAgent
from agents.runs.command import AgentCommand
from rl_replicator.collectives.randomness import StepSeeds


@dataclasses.dataclass(frozen=True)
class DDPGConfig(NoiseSettings, PolicySettings, OffPolicyConfig):
    """Hyper-parameters of DDPG."""

    n_step: int = 5
    """Steps of reward in a return before it bootstraps. The paper uses 1."""
    target_update_rate: float = 0.01
    """tau: how far an update takes the target to the online networks. The paper uses 0.001."""


@dataclasses.dataclass(frozen=True)
class PixelDDPGConfig(PixelSettings, DDPGConfig):
    """Hyper-parameters of DDPG from pixels."""

    global_batch_size: int = 128
    """Transitions of one learner step, over all replicas."""
    steps_per_call: int = 4
    """Learner steps inside one compiled call."""


class DDPGLearner(tf.Module):
    """The variables of DDPG, and one step, written for a single device."""

    def __init__(self, config, online, target, augment, replicator, total_steps):
        super().__init__(name="ddpg")
        self._config, self._total_steps = config, total_steps
        self._augment = augment
        self.step_seed = StepSeeds()
        self.online, self.target = online, target
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")
        # They average gradients over the replicas.
        rate, variables = config.policy_learning_rate, online.policy.trainable_variables
        decay = config.weight_decay
        self._policy_optimizer = make_optimizer(replicator, rate, decay, variables)
        rate, variables = config.critic_learning_rate, online.critic_variables
        self._critic_optimizer = make_optimizer(replicator, rate, decay, variables)

    @property
    def acting_networks(self):
        """The networks that actors and the evaluator use: the online ones."""
        return {"encoder": self.online.encoder, "policy": self.online.policy}

    def step_fn(self, sample):
        """One update of the critic, the policy and the targets, from a batch of this replica."""
        config, online, target = self._config, self.online, self.target
        o_tm1, a_tm1, r_t, d_t, o_t, _ = sample.transition
        o_tm1 = self._augment(o_tm1, self.step_seed(self.num_steps, 0))
        o_t = self._augment(o_t, self.step_seed(self.num_steps, 1))

        s_t = target.encoder(o_t)  # [B, F]
        target_t = r_t + d_t * target.critic(s_t, target.policy(s_t))  # [B]
        with tf.GradientTape() as tape:
            s_tm1 = online.encoder(o_tm1)  # [B, F]
            td_errors = target_t - online.critic(s_tm1, a_tm1)  # [B]
            weights = normalized_weights(sample, config.replay, self.num_steps, self._total_steps)
            critic_loss = 0.5 * tf.reduce_mean(weights * td_errors**2)
        critic_gradients = tape.gradient(critic_loss, online.critic_variables)

        s_tm1 = tf.stop_gradient(s_tm1)
        variables = online.policy.trainable_variables
        with tf.GradientTape() as tape:
            preactivations = online.policy.preactivations(s_tm1)  # [B, A]
            q = tf.reduce_mean(online.critic(s_tm1, online.policy.squash(preactivations)))
            penalty = preactivation_penalty(preactivations, config.preactivation_penalty)
            policy_loss = penalty - q
        policy_gradients = tape.gradient(policy_loss, variables)

        self._critic_optimizer.apply(critic_gradients, online.critic_variables)
        self._policy_optimizer.apply(policy_gradients, variables)
        self.num_steps.assign_add(1)
        update_targets(target, online, config.target_update_rate)
        metrics = {"critic_loss": critic_loss, "q_mean": q}
        return StepOutput(sample.keys, tf.abs(td_errors), metrics)


class DDPG(OffPolicyAgent):
    """The networks and the learner; everything else is inherited."""

    def make_module(self, replicator, total_steps):
        """The learner's variables, made inside `replicator.scope()`."""
        online, target = self.make_networks(lambda name: ScalarCritic(self.make_critic_torso, name))
        augment = self.observations.augment
        return DDPGLearner(self.config, online, target, augment, replicator, total_steps)


command = AgentCommand("ddpg", DDPGConfig, PixelDDPGConfig, f"{__name__}:DDPG")
