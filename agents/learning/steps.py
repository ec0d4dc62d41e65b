"""The steps that a batch trains: transitions, or windows of an episode for agents with a memory.

Shapes: B is the batch, M the number of steps in it, F the number of features.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tree

from agents.config import MemoryConfig
from agents.replay.sequences import Sequence, n_step_return
from agents.replay.transitions import RETURNS, STATE, Sample

# Share of the largest priority of its steps in that of a window; the rest is their mean.
_MAX_SHARE = 0.9

Augment = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Seed = Callable[[int], tf.Tensor]


class TransitionSteps:
    """Transitions, each of which is one of the M steps of a batch.

    Attributes:
      action: [M, A] float32 or [M] int32.
      reward: [M] n-step returns.
      discount: [M] factors of the values at the observations to bootstrap from.
      next_observation: [M, ...] these, as the replay has them.
      valid: [M] float32, 0 where there is no step.
      extras: what the scale of rewards depends on.
    """

    def __init__(self, sample: Sample, seed: Seed, augment: Augment):
        """Augments the observations.

        Args:
          sample: B transitions.
          seed: stream -> seed of the augmentation.
          augment: (observations [B, ...], seed) -> observations to train on.
        """
        transition = sample.transition
        self.action, self.reward = transition.action, transition.reward
        self.discount, self.extras = transition.discount, transition.extras
        self.next_observation = transition.next_observation
        self.valid = tf.ones_like(self.reward)
        self._o_tm1 = augment(transition.observation, seed(0))
        self._o_t = augment(transition.next_observation, seed(1))

    def features(self, encoder: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns features at the steps and at the observations to bootstrap from, [M, F] each."""
        return encoder(self._o_tm1), encoder(self._o_t)

    def weighted(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each step, 0 where it is not valid: [B] -> [M]."""
        return weights

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """Returns the mean over valid steps: [M] -> []."""
        return tf.reduce_mean(values)

    def item_priorities(self, priorities: tf.Tensor) -> tf.Tensor:
        """Returns the priorities of the replay's items, given those of the steps: [M] -> [B]."""
        return priorities


class WindowSteps:
    """T steps of each of B windows, M = B T, after a burn-in of F steps; see `TransitionSteps`.

    R2D2 (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
    Learning"), section 3: each network starts from the stored state and only updates it in the
    burn-in, in which no gradient flows.
    """

    def __init__(
        self, sample: Sample, seed: Seed, augment: Augment, memory: MemoryConfig, n_step: int
    ):
        """Computes the returns, and augments the observations.

        Args:
          sample: B windows of F + T + n steps.
          seed: stream -> seed of the augmentation.
          augment: (observations [M, ...], seed) -> observations to train on.
          memory: F and T.
          n_step: n.
        """
        window: Sequence = sample.transition
        first, end = memory.burn_in, memory.burn_in + memory.trained_steps

        def rows(x: tf.Tensor) -> tf.Tensor:
            trained = x[:, first:end]  # [B, T, ...]
            return tf.reshape(trained, [-1, *trained.shape[2:]])

        returns = n_step_return(window, n_step)
        self._burn_in, self._num_steps = first, memory.trained_steps
        self._place = returns.place[:, first:] - first  # [B, T], in what follows the burn-in
        self.action, self.valid = rows(window.action), rows(window.valid)
        self.reward, self.discount = rows(returns.reward), rows(returns.discount)
        self.next_observation = tree.map_structure(
            lambda x: self._after(x[:, first:]), window.observation
        )
        flat = tree.map_structure(lambda x: tf.reshape(x, [-1, *x.shape[2:]]), window.observation)
        augmented = augment(flat, seed(0))  # [B (F + T + n), ...]
        length = window.reward.shape[1]
        self._observation = tree.map_structure(
            lambda x: tf.reshape(x, [-1, length, *x.shape[1:]]), augmented
        )
        self._kept, self._state = window.valid, window.extras[STATE]
        self.extras = ()
        if RETURNS in window.extras:
            last = returns.place[:, first:] - 1  # [B, T], of the rewards of each return
            self.extras = tf.reshape(tf.gather(_returns(window), last, batch_dims=1), [-1])  # [M]

    def features(self, encoder: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """See `TransitionSteps`; the encoder is an `agents.networks.recurrent.RecurrentEncoder`."""
        first, state = self._burn_in, self._state
        if first:
            # Before an episode there is nothing to remember.
            kept = self._kept[:, :first]
            observation = tree.map_structure(lambda x: x[:, :first], self._observation)
            _, state = encoder.unroll(observation, state, kept)
        observation = tree.map_structure(lambda x: x[:, first:], self._observation)
        kept = tf.ones_like(self._kept[:, first:])
        features, _ = encoder.unroll(observation, tf.stop_gradient(state), kept)
        trained = features[:, : self._num_steps]  # [B, T, F]
        return tf.reshape(trained, [-1, trained.shape[-1]]), self._after(features)

    def weighted(self, weights: tf.Tensor) -> tf.Tensor:
        """See `TransitionSteps`."""
        return tf.repeat(weights, self._num_steps) * self.valid

    def mean(self, values: tf.Tensor) -> tf.Tensor:
        """See `TransitionSteps`."""
        return tf.reduce_sum(self.valid * values) / tf.reduce_sum(self.valid)

    def item_priorities(self, priorities: tf.Tensor) -> tf.Tensor:
        """See `TransitionSteps`: eta max + (1 - eta) mean over valid steps, eta 0.9 (R2D2)."""
        of_steps = tf.reshape(priorities * self.valid, [-1, self._num_steps])  # [B, T]
        count = tf.reduce_sum(tf.reshape(self.valid, [-1, self._num_steps]), axis=1)  # [B]
        mean = tf.reduce_sum(of_steps, axis=1) / count
        return _MAX_SHARE * tf.reduce_max(of_steps, axis=1) + (1.0 - _MAX_SHARE) * mean

    def _after(self, x: tf.Tensor) -> tf.Tensor:
        """Selects what to bootstrap from: [B, T + n, ...] -> [M, ...]."""
        chosen = tf.gather(x, self._place, batch_dims=1)  # [B, T, ...]
        return tf.reshape(chosen, [-1, *chosen.shape[2:]])


BatchSteps = TransitionSteps | WindowSteps
# Makes the steps of a batch; the seed of a stream is [2] int32.
MakeSteps = Callable[[Sample, Seed], BatchSteps]


def _returns(window: Sequence) -> tf.Tensor:
    """Returns the discounted rewards of the episode up to each step, [B, F + T + n].

    `agents.replay.adder.ReturnAdder` defines them. Windows have those at their first step; before
    an episode, they and the rewards are 0.

    Args:
      window: B windows.
    """
    totals = [window.extras[RETURNS]]
    for step in range(1, window.reward.shape[1]):
        totals.append(window.reward[:, step] + window.discount[:, step - 1] * totals[-1])
    return tf.stack(totals, axis=1)
