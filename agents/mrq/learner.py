"""The learner's variables and one step of MR.Q, written for a single device."""

import functools
from typing import Any

import sonnet as snt
import tensorflow as tf
import tree

import rl_replicator as rr
from agents.learning import diagnostics
from agents.learning.losses import normalized_weights
from agents.learning.optimizers import make_optimizer
from agents.learning.replay_learner import StepOutput
from agents.learning.targets import update_targets
from agents.mrq import losses
from agents.mrq.actions import ActionVectors
from agents.mrq.config import MRQConfig
from agents.mrq.networks import LatentModel, Networks
from agents.mrq.reward_scale import RewardScale
from agents.networks.actor_critic import check_deterministic
from agents.observations import PixelObservations, StateObservations
from agents.replay.sequences import Sequence, n_step_return
from agents.replay.transitions import Sample
from rl_replicator.collectives.randomness import StepSeeds, normal


class MRQLearner(tf.Module):
    """Owns the variables of MR.Q and the step that trains them.

    Build it inside `replicator.scope()`; the caller then replicates `step_fn`.

    In the paper, every 250 steps begin with 250 updates of the encoders, and policy and critics
    then train on these. Here each step has one update of both, from one batch: the model trains its
    own encoders, while policy and critics use a copy that is renewed every 250 steps. So they see
    the same as in the paper, 250 steps later, and all steps take the same time.
    """

    def __init__(
        self,
        config: MRQConfig,
        online: Networks,
        target: Networks,
        model: LatentModel,
        total_steps: int,
        observations: StateObservations | PixelObservations,
        actions: ActionVectors,
        replicator: rr.Replicator,
    ):
        """Makes the optimizers.

        Args:
          config: hyper-parameters.
          online: built networks.
          target: built networks with the same weights.
          model: built, with the weights of the encoders of `online`.
          total_steps: learner steps over which the importance exponent grows to its final value.
          observations: the parts that depend on the kind of observation.
          actions: the parts that depend on the kind of action.
          replicator: the replicator of the current scope.
        """
        super().__init__(name="mrq")
        check_deterministic(online.policy)
        self._config = config
        self._total_steps = total_steps
        self._observations, self._actions = observations, actions
        self.step_seed = StepSeeds()
        self.online, self.target, self.model = online, target, model
        self.reward_scale = RewardScale()
        decay = config.weight_decay
        self._model_optimizer = make_optimizer(
            replicator, config.encoder_learning_rate, decay, model.trainable_variables
        )
        self._critic_optimizer = make_optimizer(
            replicator,
            config.critic_learning_rate,
            decay,
            online.critic.trainable_variables,
            max_global_norm=config.max_gradient_norm,
        )
        self._policy_optimizer = make_optimizer(
            replicator, config.policy_learning_rate, decay, online.policy.trainable_variables
        )
        self.num_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="num_steps")

    @property
    def acting_networks(self) -> dict[str, snt.Module]:
        """The online networks that act."""
        return {"encoder": self.online.encoder, "policy": self.online.policy}

    @tf.autograph.experimental.do_not_convert
    def step_fn(self, sample: Sample) -> StepOutput:
        """One update of the model, the critics and the policy.

        Algorithm 1 of Fujimoto et al. 2025 (arXiv:2501.16142).

        Args:
          sample: a batch of this replica, of a `Sequence` of T + 1 steps.

        Returns:
          The new priorities and the metrics.
        """
        sequence: Sequence = sample.transition
        self._begin_period(sample)
        flat = tree.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), sequence.observation)
        flat = self._observations.augment(flat, self.step_seed(self.num_steps, 0))
        length = sequence.reward.shape[1]
        observations = tree.map_structure(
            lambda x: tf.reshape(x, [-1, length, *x.shape[1:]]), flat
        )  # [B, T + 1, ...]
        features = self.online.encoder(flat)
        features = tf.reshape(features, [-1, length, features.shape[-1]])  # [B, T + 1, Z]
        actions = self._actions.encode(sequence.action)  # [B, T + 1, A]

        model_metrics = self._update_model(sequence, _at(observations, 0), actions, features)
        target = self._target(sequence, observations)  # [B]
        pair = self.online.pair_encoder(features[:, 0], actions[:, 0])  # [B, W]
        weights = normalized_weights(
            sample, self._config.replay, self.num_steps, self._total_steps
        )  # [B]
        td_errors, critic_gradients, critic_metrics = self._update_critic(pair, target, weights)
        action, policy_gradients, policy_metrics = self._update_policy(sequence, features[:, 0])
        self.num_steps.assign_add(1)
        priorities = losses.priorities(td_errors)
        return StepOutput(
            keys=sample.keys,
            priorities=priorities,
            metrics={
                **model_metrics,
                **critic_metrics,
                **policy_metrics,
                "reward_scale": tf.convert_to_tensor(self.reward_scale.online),
                **diagnostics.step_metrics(
                    critic_gradients,
                    self.online.critic.trainable_variables,
                    policy_gradients,
                    action,
                    weights,
                    priorities,
                ),
            },
        )

    def _begin_period(self, sample: Sample) -> None:
        """Every 250 steps, renews the target networks, the encoders and the scale."""
        online, target, model = self.online, self.target, self.model
        self.reward_scale.add(sample, sample.transition.reward[:, 0])

        def renew() -> None:
            update_targets(target, online, rate=1.0)
            trained = (model.encoder, model.pair_encoder)
            update_targets((online.encoder, online.pair_encoder), trained, rate=1.0)
            self.reward_scale.renew()

        is_due = tf.equal(self.num_steps % self._config.target_update_period, 0)
        tf.cond(is_due, renew, lambda: None)

    def _update_model(
        self, sequence: Sequence, observation: Any, actions: tf.Tensor, features: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Trains the encoders; `features` of the states that follow are the targets."""
        config, variables = self._config, self.model.trainable_variables
        end = sequence.valid * tf.cast(tf.equal(sequence.discount, 0.0), tf.float32)
        with tf.GradientTape() as tape:
            errors = losses.model_losses(
                self.model(observation, actions[:, :-1]),
                features[:, 1:],
                sequence.reward[:, :-1],
                end[:, :-1],
                sequence.valid[:, :-1],
            )
            loss = (
                config.dynamics_weight * errors["dynamics"]
                + config.reward_weight * errors["reward"]
                + config.end_weight * errors["end"]
            )
        self._model_optimizer.apply(tape.gradient(loss, variables), variables)
        return {f"{name}_error": error for name, error in errors.items()}

    def _target(self, sequence: Sequence, observations: Any) -> tf.Tensor:
        """Returns the critics' target [B]: n rewards and the target critics after them."""
        config, target, kind = self._config, self.target, self._actions
        returns = n_step_return(sequence, config.n_step)
        place = returns.place[:, 0]  # [B], n or, at an episode's end, less.
        features = target.encoder(_at(observations, place))  # [B, Z]
        mask = self._observations.mask(_at(sequence.observation, place))
        preactivations = target.policy.preactivations(features)  # [B, A]
        draw = functools.partial(self._noise_like, preactivations)
        action = kind.soft(target.policy, preactivations, mask, lambda: draw(1))
        limit = config.target_noise_clip
        noise = tf.clip_by_value(config.target_noise_sigma * draw(2), -limit, limit)
        smoothed = kind.nearest(action + kind.noise_scale * noise, mask)
        q = target.critic(target.pair_encoder(features, smoothed))  # [B, 2]
        scale = self.reward_scale
        return losses.scaled_target(
            returns.reward[:, 0], returns.discount[:, 0], q, scale.online, scale.target
        )

    def _update_critic(
        self, pair: tf.Tensor, target: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], dict[str, tf.Tensor]]:
        """Trains the critics; returns the TD errors [B, 2], the gradients and the metrics."""
        critic = self.online.critic
        with tf.GradientTape() as tape:
            q = critic(pair)  # [B, 2]
            td_errors = target[:, None] - q
            loss = losses.critic_loss(td_errors, weights)
        gradients = tape.gradient(loss, critic.trainable_variables)
        self._critic_optimizer.apply(gradients, critic.trainable_variables)
        q_mean = self.reward_scale.online * tf.reduce_mean(q)
        return td_errors, gradients, {"critic_loss": loss, "q_mean": q_mean}

    def _update_policy(
        self, sequence: Sequence, features: tf.Tensor
    ) -> tuple[tf.Tensor, tuple[tf.Tensor, ...], dict[str, tf.Tensor]]:
        """Trains the policy; returns its actions [B, A], the gradients and the metrics."""
        online, config = self.online, self._config
        mask = self._observations.mask(_at(sequence.observation, 0))
        variables = online.policy.trainable_variables
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            preactivations = online.policy.preactivations(features)  # [B, A]
            action = self._actions.soft(
                online.policy, preactivations, mask, lambda: self._noise_like(preactivations, 3)
            )
            q = online.critic(online.pair_encoder(features, action))  # [B, 2]
            loss = losses.policy_loss(q, preactivations, config.preactivation_penalty)
        gradients = tape.gradient(loss, variables)
        self._policy_optimizer.apply(gradients, variables)
        return action, gradients, {"policy_loss": loss}

    def _noise_like(self, x: tf.Tensor, stream: int) -> tf.Tensor:
        shape = [tf.shape(x)[0], x.shape[1]]
        return normal(shape, self.step_seed(self.num_steps, stream))


def _at(observations: Any, step: tf.Tensor | int) -> Any:
    """Returns the observations of a step, one or [B]: nest of [B, T + 1, ...] -> of [B, ...]."""
    if isinstance(step, int):
        return tree.map_structure(lambda x: x[:, step], observations)
    return tree.map_structure(lambda x: tf.gather(x, step, batch_dims=1), observations)
