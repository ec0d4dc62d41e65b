"""The networks of an actor-critic agent, as one value."""

from typing import NamedTuple

import sonnet as snt
import tensorflow as tf


class ActorCritic(NamedTuple):
    """Built networks that a learner trains; actors have copies of the first two.

    Attributes:
      encoder: [B, ...] observations -> [B, F] float32 features, shared by the others.
      policy: [B, F] features -> actions [B, A], or the parameters of their distribution.
      critic: ([B, F] features, [B, A] actions) -> values, as the agent defines them.
    """

    encoder: snt.Module
    policy: snt.Module
    critic: snt.Module

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """The variables that the losses train, in an order that equal networks share."""
        return tuple(variable for network in self for variable in network.trainable_variables)

    @property
    def critic_variables(self) -> tuple[tf.Variable, ...]:
        """The variables that the critic's loss trains, including the encoder."""
        return (*self.encoder.trainable_variables, *self.critic.trainable_variables)
