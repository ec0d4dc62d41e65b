"""D4PG: its networks and its learner, on top of the parts that off-policy agents share."""

from collections.abc import Callable

import numpy as np
import sonnet as snt
import tensorflow as tf

import rl_replicator as rr
from agents.d4pg.config import MAX_RETURN
from agents.d4pg.learner import D4PGLearner
from agents.d4pg.losses import CriticLoss, find_critic_loss
from agents.learning.value_scale import BOUND
from agents.networks.actor_critic import TwinCritic
from agents.networks.torsos import CriticTorso
from agents.off_policy_agent import OffPolicyAgent
from rl_replicator.errors import ConfigError

# How much the initial logits fall from atom to atom, away from a return of 0: steep enough for a
# mean near 0, and flat enough that every atom stays within reach.
_PRIOR_SLOPE = 0.2


def logits_around_zero(atoms: np.ndarray) -> np.ndarray:
    """Logits of a distribution over returns whose mode is the atom nearest to a return of 0.

    A critic that starts in the middle of a one-sided value range takes thousands of steps to come
    down. Until then, the policy follows a critic that has learned only that everything gets worse,
    and saturates: on reacher:hard it never recovered. DrQ-v2's scalar critic also starts near 0.

    Args:
      atoms: [Z] float32, evenly spaced.

    Returns:
      [Z] float32, the largest 0.
    """
    distances = np.abs(atoms)
    return -_PRIOR_SLOPE * (distances - distances.min()) / (atoms[1] - atoms[0])


class CategoricalCritic(snt.Module):
    """Distribution of the return: ([B, N] features, [B, A] actions) -> [B, Z] logits."""

    def __init__(
        self,
        make_torso: Callable[[], CriticTorso],
        initial_logits: np.ndarray,
        name: str = "critic",
    ):
        """Makes the layers.

        Args:
          make_torso: makes all but the last layer.
          initial_logits: [Z] float32, initial bias of the last layer.
          name: name of the module.
        """
        super().__init__(name=name)
        self._torso = make_torso()
        self._head = snt.Linear(
            len(initial_logits),
            w_init=snt.initializers.VarianceScaling(1e-2),
            b_init=lambda shape, dtype: tf.constant(initial_logits, dtype, shape),
            name="head",
        )

    def __call__(self, features: tf.Tensor, action: tf.Tensor) -> tf.Tensor:
        """([B, N] float32, [B, A] float32) -> [B, Z] float32."""
        return self._head(self._torso(features, action))


class D4PG(OffPolicyAgent):
    """The D4PG agent (Barth-Maron et al. 2018, arXiv:1804.08617)."""

    trains_batch_norm = True

    @property
    def initial_priority(self) -> float:
        """The highest priority that a transition can have for a critic that predicts its prior.

        KL(target || prior) is greatest where all of the target lies on the least probable atom. For
        a uniform prior it is log(atoms).
        """
        logits = self._prior_logits().astype(np.float64)
        # For logits far from 0, all exponentials could be 0 without the shift.
        return float(np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits.min())

    @property
    def follows_returns(self) -> bool:
        """Whether rewards are divided by the spread of the returns, see `D4PGConfig.value_scale`.

        Some specs use float32's greatest number where rewards are unbounded.
        """
        low, high = self._value_range()
        is_bounded = abs(low) <= MAX_RETURN and abs(high) <= MAX_RETURN
        return self.config.value_scale == "returns" or not is_bounded

    def check_config(self) -> None:
        """See `OffPolicyAgent`."""
        super().check_config()
        self.atoms()
        self.make_critic_loss()

    def make_critic_loss(self) -> CriticLoss:
        """Returns the critic's loss, with the signature of `losses.categorical_td_loss`."""
        return find_critic_loss(self.config.critic_loss)

    def make_module(self, replicator: rr.Replicator, total_steps: int) -> D4PGLearner:
        """See `OffPolicyAgent`."""
        online, target = self.make_networks(self._make_critic)
        return D4PGLearner(
            self.config,
            online=online,
            target=target,
            atoms=self.atoms(),
            total_steps=total_steps,
            augment=self.observations.augment,
            replicator=replicator,
            critic_loss=self.make_critic_loss(),
            scale=self.make_scale(),
        )

    def atoms(self) -> np.ndarray:
        """Returns the support of the critic: [Z] float32, evenly spaced.

        If rewards are divided by the spread of the returns, it is that of the divided returns.

        Raises:
          ConfigError: if the range is empty, or too narrow for float32.
        """
        config = self.config
        low, high = (-BOUND, BOUND) if self.follows_returns else self._value_range()
        if low >= high:
            raise ConfigError(
                f"--agent.value-min: expected less than the highest return ({high:g}), got "
                f"{low:g}; pass --agent.value-min and --agent.value-max"
            )
        atoms = np.linspace(low, high, config.num_atoms, dtype=np.float32)
        if not (np.diff(atoms) > 0).all():
            raise ConfigError(
                f"expected a range of returns whose {config.num_atoms} atoms differ in float32, "
                f"got {low!r} to {high!r}; "
                "pass --agent.value-min and --agent.value-max further apart"
            )
        return atoms

    def _value_range(self) -> tuple[float, float]:
        """Returns the lowest and the highest return.

        The sum of gamma**t over all t is 1 / (1 - gamma). An episode may end at any step, with
        returns near 0. So returns lie between min(lowest reward, 0) and max(highest reward, 0),
        each times this sum.
        """
        config, reward = self.config, self.environment_spec.rewards
        horizon = 1.0 / (1.0 - self.discount)
        low, high = config.value_min, config.value_max
        if low is None:
            low = min(0.0, float(getattr(reward, "minimum", -np.inf))) * horizon
        if high is None:
            high = max(0.0, float(getattr(reward, "maximum", np.inf))) * horizon
        return low, high

    def _prior_logits(self) -> np.ndarray:
        """Returns the logits of a new critic in every state, [Z] float32."""
        atoms = self.atoms()
        is_uniform = self.config.critic_prior == "uniform"
        return np.zeros_like(atoms) if is_uniform else logits_around_zero(atoms)

    def _make_critic(self, name: str) -> snt.Module:
        def make(name: str) -> snt.Module:
            return CategoricalCritic(self.make_critic_torso, self._prior_logits(), name)

        return make(name) if self.config.num_critics == 1 else TwinCritic(make, name)
