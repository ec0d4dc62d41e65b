"""The learner: one step of D4PG, written as for one machine."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg import losses
from agents.d4pg.config import D4PGConfig
from agents.d4pg.networks import D4PGNetworks
from agents.learning.variables import named_arrays
from agents.replay.transitions import Sample
from rl_replicator import collectives


class StepOutput(NamedTuple):
    """What one learner step returns on each replica.

    Attributes:
      keys: [B] uint64 rows of the batch.
      priorities: [B] float32 their new priorities.
      metrics: scalars by name, equal on all replicas or averaged by the caller.
    """

    keys: tf.Tensor
    priorities: tf.Tensor
    metrics: dict[str, tf.Tensor]


class D4PGLearner(tf.Module):
    """Owns the variables of D4PG and the step that trains them.

    Build it inside `replicator.scope()`; `step_fn` is then replicated by the caller and knows of no
    strategy. Its replicas meet in three places: the optimizers average gradients, the importance
    weights are scaled by the largest of the global batch, and nothing else.
    """

    def __init__(
        self,
        config: D4PGConfig,
        online: D4PGNetworks,
        target: D4PGNetworks,
        atoms: np.ndarray,
        importance_steps: int,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
        replicator: rr.Replicator,
    ):
        """Copies `online` to `target` and makes the optimizers.

        Args:
          config: hyper-parameters.
          online: built networks.
          target: built networks of the same shape.
          atoms: [Z] float32 support of the critic.
          importance_steps: learner steps over which the importance exponent grows to its end.
          augment: (observations [B, ...], random seed [2] int32) -> the observations to train on.
          replicator: whose scope this is.
        """
        super().__init__(name="d4pg")
        self._config = config
        self._atoms = tf.constant(atoms, tf.float32)
        self._importance_steps = importance_steps
        self._augment = augment
        self.encoder, self.policy, self.critic = online
        self.target_encoder, self.target_policy, self.target_critic = target
        self._policy_optimizer = replicator.wrap_optimizer(
            rr.optimizers.Adam(config.policy_learning_rate),
            max_global_norm=config.max_gradient_norm,
        )
        self._critic_optimizer = replicator.wrap_optimizer(
            rr.optimizers.Adam(config.critic_learning_rate),
            max_global_norm=config.max_gradient_norm,
        )
        # Their slots must exist before a checkpoint can be restored.
        replicator.build_optimizer(self._policy_optimizer, self.policy.trainable_variables)
        replicator.build_optimizer(self._critic_optimizer, self._critic_variables())
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")
        for source, copy in self.target_pairs():
            copy.assign(source)

    def target_pairs(self) -> list[tuple[tf.Variable, tf.Variable]]:
        """Each variable of the online networks with its copy in the target networks."""
        return [
            pair
            for source, copy in (
                (self.encoder, self.target_encoder),
                (self.policy, self.target_policy),
                (self.critic, self.target_critic),
            )
            for pair in zip(source.variables, copy.variables, strict=True)
        ]

    def _critic_variables(self) -> tuple[tf.Variable, ...]:
        """What the critic's loss trains: the encoder too, and nothing else trains that."""
        return (*self.encoder.trainable_variables, *self.critic.trainable_variables)

    def step_fn(self, sample: Sample) -> StepOutput:
        """One update of the critic and of the policy from one batch.

        D4PG's Algorithm 1 (arXiv:1804.08617): project the n-step target, weight each example's
        cross-entropy by its importance, follow dQ/da with the policy, now and then move the
        targets to the online networks.

        Args:
          sample: a batch of this replica's share.

        Returns:
          The batch's keys with their new priorities, and metrics.
        """
        o_tm1, a_tm1, r_t, d_t, o_t, _ = sample.transition
        o_tm1 = self._augment(o_tm1, self._seed(0))
        o_t = self._augment(o_t, self._seed(1))

        # The bootstrap distribution, from the target networks.
        s_t = self.target_encoder(o_t)  # [B, F]
        target_logits = self.target_critic(s_t, self.target_policy(s_t))  # [B, Z]
        target_probs = tf.nn.softmax(target_logits)

        with tf.GradientTape() as critic_tape:
            s_tm1 = self.encoder(o_tm1)  # [B, F]
            logits_tm1 = self.critic(s_tm1, a_tm1)  # [B, Z]
            td_losses, td_targets = losses.categorical_td_loss(
                logits_tm1, r_t, d_t, target_probs, self._atoms
            )  # [B], [B, Z]
            weights = self._importance_weights(sample)  # [B]
            critic_loss = tf.reduce_mean(weights * td_losses)

        # The policy follows dQ/da, through a critic and an encoder that this does not train.
        s_tm1 = tf.stop_gradient(s_tm1)
        with tf.GradientTape() as policy_tape:
            action = self.policy(s_tm1)  # [B, A]
        with tf.GradientTape(watch_accessed_variables=False) as action_tape:
            action_tape.watch(action)
            probs = tf.nn.softmax(self.critic(s_tm1, action))  # [B, Z]
            q = tf.linalg.matvec(probs, self._atoms)  # [B]
        dq_da = losses.action_gradient(
            action_tape.gradient(q, action), self._config.max_action_gradient_norm
        )  # [B, A]
        batch_size = tf.cast(tf.shape(action)[0], tf.float32)

        critic_variables = self._critic_variables()
        policy_variables = self.policy.trainable_variables
        critic_gradients = critic_tape.gradient(critic_loss, critic_variables)
        policy_gradients = policy_tape.gradient(
            action, policy_variables, output_gradients=-dq_da / batch_size
        )
        self._critic_optimizer.apply(critic_gradients, critic_variables)
        self._policy_optimizer.apply(policy_gradients, policy_variables)
        self._update_targets()

        edge_low, edge_high = losses.edge_mass(probs)
        return StepOutput(
            keys=sample.keys,
            priorities=losses.kl_priorities(td_losses, td_targets),
            metrics={
                "critic_loss": critic_loss,
                "q_mean": tf.reduce_mean(q),
                "value_edge_mass_low": edge_low,
                "value_edge_mass_high": edge_high,
            },
        )

    def _seed(self, stream: int) -> tf.Tensor:
        """[2] int32: another one in every step, on every replica and for every `stream` of two."""
        stream_of_replica = 2 * collectives.replica_id() + stream
        return tf.stack([tf.cast(self.num_steps, tf.int32), tf.cast(stream_of_replica, tf.int32)])

    def _importance_weights(self, sample: Sample) -> tf.Tensor:
        replay = self._config.replay
        progress = tf.minimum(
            1.0, tf.cast(self.num_steps, tf.float32) / float(self._importance_steps)
        )
        exponent = replay.importance_exponent_start + progress * (
            replay.importance_exponent_end - replay.importance_exponent_start
        )
        weights = losses.importance_weights(sample.probabilities, sample.table_size, exponent)
        return weights / collectives.all_max(tf.reduce_max(weights))  # [B]

    def _update_targets(self) -> None:
        """Every so many steps: target += tau * (online - target)."""
        self.num_steps.assign_add(1)
        period, rate = self._config.target_update_period, self._config.target_update_rate

        def update() -> tf.Tensor:
            for source, target in self.target_pairs():
                target.assign(source if rate == 1 else target + rate * (source - target))
            return tf.constant(True)

        due = tf.equal(self.num_steps % period, 0)
        tf.cond(due, update, lambda: tf.constant(False))

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Copies of the named networks' variables, by path.

        Actors and the evaluator ask for "policy": the online policy is the one that acts.

        Args:
          names: of `encoder`, `policy`, `critic`, and of the same with `target_`.

        Returns:
          "policy/torso/linear_0/w" and the like -> float32 array.

        Raises:
          KeyError: if a name is not one of the six.
        """
        modules = {
            "encoder": self.encoder,
            "policy": self.policy,
            "critic": self.critic,
            "target_encoder": self.target_encoder,
            "target_policy": self.target_policy,
            "target_critic": self.target_critic,
        }
        return {
            path: array
            for name in names
            for path, array in named_arrays(name, modules[name]).items()
        }
