"""Policies and critics, and the networks of an actor-critic agent as one value."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import sonnet as snt
import tensorflow as tf

from agents.networks.mlp import MakeTorso, layer_norm_mlp
from agents.networks.torsos import CriticTorso, hidden
from rl_replicator.errors import ConfigError

# Inputs of tanh up to here, actions up to 0.96, are free: a penalty on them would hold the policy
# at 0 where rewards, and with them dQ/da, are tiny (hopper:hop).
FREE_PREACTIVATION = 2.0
# Bounds of the logarithm of the standard deviation, before squashing.
_LOG_STDDEV_MIN, _LOG_STDDEV_MAX = -10.0, 2.0


class ActorCritic(NamedTuple):
    """Built networks that a learner trains; actors have copies of the first two.

    Attributes:
      encoder: [B, ...] observations -> [B, F] float32 features, shared by the others.
      policy: [B, F] features -> actions [B, A], or the parameters of their distribution.
      critic: ([B, F] features, [B, A] actions) -> values, as the agent defines them; that of an
        agent that values states alone takes features alone.
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


@tf.custom_gradient
def inverting_tanh(x: tf.Tensor):
    """tanh with inverting gradients: they vanish towards a limit, but not away from it.

    Where tanh saturates, its own derivative is 0, and no gradient would bring a policy back.
    Hausknecht & Stone 2016 (arXiv:1511.04143, "inverting gradients") scale dQ/da by the distance to
    the limit in its direction in place of the derivative of a squashing function: here 1 - y
    upwards and 1 + y downwards, both 1 at 0, as is the derivative of tanh.

    Args:
      x: float32 of any shape.

    Returns:
      As `x`, in [-1, 1].
    """
    y = tf.tanh(x)

    def gradient(dy: tf.Tensor) -> tf.Tensor:
        # Optimizers descend: a negative gradient makes y grow.
        return dy * tf.where(dy < 0, 1.0 - y, 1.0 + y)

    return y, gradient


def preactivation_penalty(preactivations: tf.Tensor, weight: float) -> tf.Tensor:
    """Computes the term of a policy's loss that keeps it away from the limits of its actions.

    Adam's steps have the same size whatever the size of dQ/da, so that without rewards a policy
    drifts to where tanh saturates, and stays there. The penalty on the inputs of tanh outweighs a
    small dQ/da, and is outweighed by a large one. MR.Q (Fujimoto et al. 2025, arXiv:2501.16142)
    penalises all inputs; here, only their excess over `FREE_PREACTIVATION` is penalised.

    Args:
      preactivations: [B, A] float32, the inputs of tanh.
      weight: the weight of half the squared norm of their excess.

    Returns:
      float32 scalar: the mean over the batch.
    """
    excess = tf.nn.relu(tf.abs(preactivations) - FREE_PREACTIVATION)
    return 0.5 * weight * tf.reduce_mean(tf.reduce_sum(tf.square(excess), axis=-1))


def check_deterministic(policy: snt.Module) -> None:
    """Checks that a learner can penalise the inputs of a policy's tanh.

    Args:
      policy: the result of an agent's `make_policy`, which may be user-defined.

    Raises:
      ConfigError: if it lacks a method of `DeterministicPolicy`.
    """
    if not (hasattr(policy, "preactivations") and hasattr(policy, "squash")):
        raise ConfigError(
            "make_policy: expected a policy with preactivations and squash, got a "
            f"{type(policy).__name__}; derive it from DeterministicPolicy of "
            "agents.networks.actor_critic"
        )


class HeadedNetwork(snt.Module):
    """Hidden layers and a linear one: [B, N] float32 features -> [B, size] float32."""

    def __init__(self, layer_sizes: Sequence[int], size: int, make_torso: MakeTorso, name: str):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          size: outputs.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        # Nearly zero at first, so that early actions are not where tanh saturates, and early
        # distributions are nearly uniform.
        self._head = snt.Linear(size, w_init=snt.initializers.VarianceScaling(1e-4), name="head")

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, size] float32."""
        return self._head(hidden(self._torso, features))


class DeterministicPolicy(HeadedNetwork):
    """[B, N] float32 features -> [B, A] float32 actions in (-1, 1)."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        squash: Callable[[tf.Tensor], tf.Tensor] = tf.tanh,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          squash: float32 of any shape -> the same shape in [-1, 1].
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(layer_sizes, num_actions, make_torso, name)
        self._squash = squash

    def __call__(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, A] float32."""
        return self.squash(self.preactivations(features))

    def preactivations(self, features: tf.Tensor) -> tf.Tensor:
        """[B, N] float32 -> [B, A] float32, the inputs of `squash`."""
        return super().__call__(features)

    def squash(self, preactivations: tf.Tensor) -> tf.Tensor:
        """[B, A] float32 -> [B, A] float32 in [-1, 1]."""
        return self._squash(preactivations)


class Gaussian(NamedTuple):
    """A diagonal Gaussian over actions before they are squashed by tanh.

    Attributes:
      mean: [..., A] float32.
      stddev: [..., A] float32, positive.
    """

    mean: tf.Tensor
    stddev: tf.Tensor


class GaussianPolicy(snt.Module):
    """[B, N] float32 features -> `Gaussian` of [B, A]."""

    def __init__(
        self,
        layer_sizes: Sequence[int],
        num_actions: int,
        make_torso: MakeTorso = layer_norm_mlp,
        name: str = "policy",
    ):
        """Makes the layers.

        Args:
          layer_sizes: units of each hidden layer, at least one.
          num_actions: A.
          make_torso: makes the hidden layers.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso(layer_sizes, "torso")
        # Nearly zero at first: the first actions have mean 0 and standard deviation 1.
        init = snt.initializers.VarianceScaling(1e-4)
        self._mean = snt.Linear(num_actions, w_init=init, name="mean")
        self._log_stddev = snt.Linear(num_actions, w_init=init, name="log_stddev")

    def __call__(self, features: tf.Tensor) -> Gaussian:
        """[B, N] float32 -> `Gaussian` of [B, A] float32."""
        x = hidden(self._torso, features)
        log_stddev = tf.clip_by_value(self._log_stddev(x), _LOG_STDDEV_MIN, _LOG_STDDEV_MAX)
        return Gaussian(self._mean(x), tf.exp(log_stddev))


class ScalarCritic(snt.Module):
    """Expected return: ([B, N] features, [B, A] actions) -> [B] float32."""

    def __init__(self, make_torso: Callable[[], CriticTorso], name: str = "critic"):
        """Makes the layers.

        Args:
          make_torso: makes all but the last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso()
        self._head = snt.Linear(1, w_init=snt.initializers.VarianceScaling(1e-2), name="head")

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B] float32."""
        return tf.squeeze(self._head(self._torso(features, action)), axis=-1)


class TwinCritic(snt.Module):
    """Two independent critics of the same inputs, such as features and actions."""

    def __init__(self, make_critic: Callable[[str], snt.Module], name: str = "critic"):
        """Makes both critics.

        Args:
          make_critic: name -> unbuilt critic, [B, ...] inputs -> [B, ...] float32.
          name: name of the module.
        """
        super().__init__(name=name)
        self._critics = [make_critic(which) for which in ("first", "second")]

    def __call__(self, *inputs: tf.Tensor) -> tf.Tensor:
        """[B, ...] float32 each -> [B, 2, ...] float32."""
        return tf.stack([critic(*inputs) for critic in self._critics], axis=1)
