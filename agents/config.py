"""Hyper-parameters that agents share. Importing this file loads nothing heavy.

An agent's config is a frozen dataclass that inherits the groups of settings that it needs, and
overrides their defaults where its paper differs:

    class TD3Config(NoiseSettings, PolicySettings, OffPolicyConfig): ...
    class PixelTD3Config(PixelSettings, TD3Config): ...
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from agents.replay.config import FrameReplayConfig, ReplayConfig
from rl_replicator.errors import check_option
from rl_replicator.runs.plain_data import as_stored
from rl_replicator.runs.run_directory import AUTO, adopted

# Larger values are typos: networks with such layers do not fit into memory, episodes have fewer
# steps, and actions span only [-1, 1].
MAX_LAYER_SIZE = 8192
MAX_N_STEP = 1000
_MAX_SIGMA = 10
_MAX_ATOMS = 4096
# No gradient reaches this norm. Near the limit of float32, clipping to a norm turns all gradients
# into zeros, infinity and NaN.
_MAX_NORM = 1e30
# Limit of the atoms' absolute values. Near the limit of float32, differences between atoms would be
# infinite.
MAX_RETURN = 1e30
# Learner steps between two sets of weights in a policy's average: adding a set costs 2 % of a step.
AVERAGING_PERIOD = 10
# For runs from pixels, the discount "auto" is this discount per step of the simulator, to the power
# of the action repeat.
_DISCOUNT_OF_STEP = 0.97 ** (1 / 8)


class Settings:
    """Base of all groups of settings, so that each can check its own fields in `__post_init__`.

    It has no fields. A class inherits from each group once: a field that is inherited twice would
    take the default of the wrong class. A field that is overridden without a docstring keeps the
    help of the group.
    """

    _GROUP = "agent"  # The path of its fields among the options.

    def __post_init__(self) -> None:
        """Ends the chain of `super().__post_init__()` calls."""

    def check(self, is_good: bool, name: str, expected: str) -> None:
        """Raises a ConfigError that names the option of field `name`, unless `is_good`."""
        check_option(is_good, f"{self._GROUP}.{name}", expected, getattr(self, name))

    def check_layers(self, name: str) -> None:
        """Raises ConfigError unless the named field is a list of layer sizes, fit for the torso."""
        sizes, torso = getattr(self, name), getattr(self, "torso", None)
        is_good = len(sizes) > 0 and all(1 <= size <= MAX_LAYER_SIZE for size in sizes)
        self.check(is_good, name, f"one or more layer sizes from 1 to {MAX_LAYER_SIZE}")
        is_good = torso != "simba" or len(set(sizes)) == 1
        self.check(is_good, name, "equal sizes, one for each residual block of the torso simba")

    def check_rate(self, name: str) -> None:
        """Raises ConfigError unless the named field is a learning rate."""
        self.check(0 < getattr(self, name) < 1, name, "a number between 0 and 1")

    def check_norm(self, name: str) -> None:
        """Raises ConfigError unless the named field is a norm that gradients can be clipped to."""
        norm = getattr(self, name)
        is_good = norm is None or 0 < norm <= _MAX_NORM
        self.check(is_good, name, f"a positive number up to {_MAX_NORM:g}, or None")

    def check_positive(self, *names: str) -> None:
        """Raises ConfigError unless each named field is positive and finite."""
        for name in names:
            self.check(0 < getattr(self, name) < math.inf, name, "a finite number above 0")

    def check_weight(self, *names: str) -> None:
        """Raises ConfigError unless each named field is finite and not negative."""
        for name in names:
            self.check(0 <= getattr(self, name) < math.inf, name, "a finite number, at least 0")

    def check_at_least(self, least: float, *names: str) -> None:
        """Raises ConfigError unless each named field is at least `least`."""
        for name in names:
            self.check(getattr(self, name) >= least, name, f"at least {least}")


@dataclasses.dataclass(frozen=True)
class LearnerConfig(Settings):
    """Settings of every agent that trains a policy and a critic."""

    normalize_observations: bool = False
    """Scale every dimension of the state to mean 0 and variance 1, over all batches so far."""
    torso: str = "mlp"
    """Hidden layers of policy and critic: `mlp`; `simba` (residual blocks with LayerNorm; all sizes
    are equal); `xqc` (batch norm before each layer, and weights of unit length); or the import path
    of a function (`agents.networks.torsos`)."""
    critic_layers: tuple[int, ...] = (256, 256)
    """Units of the critic's hidden layers."""
    discount: float | Literal["auto"] = 0.99
    """gamma, the discount per action. `auto` only with `--pixels`."""
    global_batch_size: int = 256
    """Transitions in one learner step, over all replicas."""
    policy_average: int = 1
    """Number of last learner steps, more than 10, over which the weights of the evaluated policy
    are averaged; early in training, a tenth of the steps so far. 1: the newest weights are
    evaluated, as in the papers."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the matrix products in the learner's hidden layers with 512 or more units. bfloat16
    pays off on processors with bfloat16 units (docs/speed.md)."""
    steps_per_call: int = 16
    """Learner steps inside one compiled call."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_layers("critic_layers")
        self.check_at_least(1, "global_batch_size", "steps_per_call")
        self.check(
            self.policy_average == 1 or self.policy_average > AVERAGING_PERIOD,
            "policy_average",
            f"1, or more than {AVERAGING_PERIOD}: it averages the weights of every "
            f"{AVERAGING_PERIOD}th step",
        )
        # Statistics of batch norm do not fit an average of weights.
        is_good = self.torso != "xqc" or self.policy_average == 1
        self.check(is_good, "policy_average", "1 with the torso xqc")
        if isinstance(self.discount, str):
            is_good = self.discount == AUTO and isinstance(self, EncoderSettings)
        else:
            is_good = 0 <= self.discount < 1
        self.check(is_good, "discount", "a number in [0, 1)")


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig(LearnerConfig):
    """Settings of every agent that trains on n-step transitions in a replay table."""

    n_step: int = 1
    """Number of rewards in a return before it bootstraps."""
    critic_learning_rate: float = 3e-4
    """Adam's step size for the critic."""
    weight_decay: float = 0.0
    """Share of the weights of policy and critic, times the step size, by which each step shrinks
    them (AdamW). 0: Adam."""
    replay: ReplayConfig = ReplayConfig()
    """The replay table."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "n_step")
        self.check(self.n_step <= MAX_N_STEP, "n_step", f"at most {MAX_N_STEP}")
        self.check(0 <= self.weight_decay < 1, "weight_decay", "a number in [0, 1)")
        self.check_rate("critic_learning_rate")


@dataclasses.dataclass(frozen=True)
class TargetSettings(Settings):
    """How target networks follow the online networks, and how gradients are clipped."""

    target_update_period: int = 100
    """Learner steps between two updates of the target networks."""
    target_update_rate: float = 1.0
    """tau: how far an update moves the target networks towards the online networks. 1 copies."""
    max_gradient_norm: float | None = 40.0
    """Maximum global norm of a network's gradient. None: no clipping."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "target_update_period")
        self.check(0 < self.target_update_rate <= 1, "target_update_rate", "a number in (0, 1]")
        self.check_norm("max_gradient_norm")


@dataclasses.dataclass(frozen=True)
class PolicySettings(Settings):
    """The additional settings of an agent with a policy network beside its critic."""

    policy_layers: tuple[int, ...] = (256, 256)
    """Units of the policy's hidden layers."""
    policy_learning_rate: float = 3e-4
    """Adam's step size for the policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_layers("policy_layers")
        self.check_rate("policy_learning_rate")


@dataclasses.dataclass(frozen=True)
class CategoricalSettings(Settings):
    """The additional settings of an agent whose critic is a distribution on fixed atoms."""

    num_atoms: int = 51
    """Atoms of the return distribution."""
    value_min: float | None = None
    """Lowest atom. Default: from the environment's lowest reward and the discount."""
    value_max: float | None = None
    """Highest atom. Default: from the environment's highest reward and the discount."""
    value_scale: Literal["bounds", "returns"] = "bounds"
    """What the atoms span: `bounds`, the range that follows from the bounds of the rewards, or from
    `value_min` and `value_max`; `returns`, five times the spread of the returns seen so far, on
    both sides of 0. An environment that does not bound its rewards has `returns`, unless
    `value_min` and `value_max` are given."""
    critic_prior: Literal["zero", "uniform"] = "zero"
    """Returns that a new critic predicts: `zero`, near 0; `uniform`, the middle of the value range,
    as in the papers. If the range is [0, 100] and the critic starts at 50, the agent learns only
    that everything gets worse, and a policy saturates."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check(
            2 <= self.num_atoms <= _MAX_ATOMS, "num_atoms", f"a number from 2 to {_MAX_ATOMS}"
        )
        for name in ("value_min", "value_max"):
            value = getattr(self, name)
            is_good = value is None or abs(value) <= MAX_RETURN
            self.check(is_good, name, f"a number from -{MAX_RETURN:g} to {MAX_RETURN:g}")
        low, high = self.value_min, self.value_max
        is_range = low is None or high is None or low < high
        self.check(is_range, "value_min", f"less than value_max ({high})")


@dataclasses.dataclass(frozen=True)
class NoiseSettings(Settings):
    """How the policy of an agent with deterministic actions is trained, and how it explores."""

    squash_gradient: Literal["tanh", "inverting"] = "tanh"
    """Derivative of the tanh at the policy's output. `tanh`, the true derivative, vanishes at the
    limits of the action, where a policy may get stuck; `inverting` vanishes towards a limit but not
    away from it (`agents.networks.actor_critic.inverting_tanh`)."""
    preactivation_penalty: float = 0.0
    """Weight, in the policy's loss, of half the squared excess over 2 of the inputs of that tanh.
    It keeps a policy away from the limits of the action
    (`agents.networks.actor_critic.preactivation_penalty`)."""
    exploration: str = "gaussian"
    """`gaussian`, `pink` (correlated over time), `held` (each draw lasts 1 to 16 actions), `none`,
    or the import path of a function (`agents.acting.exploration`)."""
    exploration_random_steps: int = 0
    """Environment steps, over all actors, before the policy acts; until then, actions are random,
    each held for 8 steps on average."""
    exploration_sigma: float = 0.3
    """Standard deviation of the actors' noise; actions span [-1, 1]."""
    exploration_sigma_end: float | None = None
    """Standard deviation of the noise after `--agent.exploration-steps`. Default: constant."""
    exploration_steps: int = 100_000
    """Environment steps over which the standard deviation changes linearly."""
    exploration_spread: float = 2.0
    """If there are several environments over all actors, the standard deviations of their noise
    range from sigma / spread to sigma * spread. 1: all are equal, as in the papers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "exploration_steps")
        self.check_at_least(0, "exploration_random_steps")
        self.check_weight("preactivation_penalty")  # Infinity times zero excess is NaN.
        spread = self.exploration_spread
        self.check(1 <= spread <= _MAX_SIGMA, "exploration_spread", f"1 to {_MAX_SIGMA}")
        for name in ("exploration_sigma", "exploration_sigma_end"):
            sigma = getattr(self, name)
            is_good = sigma is None or 0 <= sigma <= _MAX_SIGMA
            self.check(is_good, name, f"a number from 0 to {_MAX_SIGMA}")


@dataclasses.dataclass(frozen=True)
class CoreConfig(Settings):
    """A recurrent core between the encoder and the other layers."""

    _GROUP = "agent.memory"

    core: Literal["none", "lstm", "gru"] = "none"
    """`lstm` or `gru`: the agent remembers the observations of an episode; `none`: it does not."""
    size: int = 128
    """Units of the core, and of the layer in front of it."""

    def __post_init__(self) -> None:
        self.check(1 <= self.size <= MAX_LAYER_SIZE, "size", f"1 to {MAX_LAYER_SIZE}")


@dataclasses.dataclass(frozen=True)
class MemoryConfig(CoreConfig):
    """A recurrent core, and the windows of the replay that train it."""

    trained_steps: int = 20
    """Consecutive steps in a window on which the learner trains. R2D2 has 80."""
    overlap: int = 10
    """Of these, steps that the next window has as well. R2D2 has 40."""
    burn_in: int = 10
    """Steps in front of them that only update the core's state. R2D2 has 40."""

    @property
    def period(self) -> int:
        """Steps from one window to the next."""
        return self.trained_steps - self.overlap

    def __post_init__(self) -> None:
        super().__post_init__()
        steps, most = self.trained_steps, MAX_N_STEP
        self.check(1 <= steps <= most, "trained_steps", f"a number from 1 to {most}")
        expected = f"from 0 to less than trained_steps ({steps})"
        self.check(0 <= self.overlap < steps, "overlap", expected)
        self.check(0 <= self.burn_in <= most, "burn_in", f"a number from 0 to {most}")


def memory_of(config: Any) -> CoreConfig | None:
    """Returns the memory of an agent with a config of any kind; None if it has none."""
    memory = getattr(config, "memory", None)
    return None if memory is None or memory.core == "none" else memory


def check_no_memory(config: Any, where: str) -> None:
    """Raises ConfigError, which says `where` an agent must have no memory, if it has one."""
    memory = memory_of(config)
    core = "none" if memory is None else memory.core
    check_option(memory is None, "agent.memory.core", f"none {where}", core)


@dataclasses.dataclass(frozen=True)
class MemorySettings(Settings):
    """The additional settings of an agent that can have a memory and learns from windows."""

    memory: MemoryConfig = MemoryConfig()
    """The recurrent core."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if getattr(self, "torso", None) == "xqc":
            # Its statistics would be those of steps that are not valid, too.
            check_no_memory(self, "with the torso xqc")


@dataclasses.dataclass(frozen=True)
class EncoderSettings(Settings):
    """The additional settings of an agent that learns from pixels, except those of a replay."""

    discount: float | Literal["auto"] = "auto"
    """gamma per agent step, which is several steps of the simulator. "auto" is 0.97 for eight
    steps, 0.985 for four and 0.992 for two. DrQ-v2 uses 0.99 for two."""
    normalize_observations: bool = False
    """Scale each number of `--frame.state` to mean 0 and variance 1, over all batches. Frames are
    scaled by a constant."""
    frame_stack: int = 3
    """Frames in an observation."""
    encoder: str = "small"
    """The convolutional network: `small`, `nature`, `drq_v2`, `mrq`, `impala`, or the import path
    of a function (`agents.networks.encoders`)."""
    feature_size: int = 50
    """Number of units to which policy and critic project the features, each with its own layer."""
    max_shift: int = 4
    """Maximum number of pixels by which training observations are randomly shifted. 0: no
    augmentation."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Dtype of the convolutions; "auto" is bfloat16 if this machine computes it fast. A run keeps
    its initial dtype."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_at_least(1, "frame_stack", "feature_size")
        self.check_at_least(0, "max_shift")


@dataclasses.dataclass(frozen=True)
class PixelSettings(EncoderSettings):
    """The additional settings of an agent that learns from pixels in a replay table."""

    replay: FrameReplayConfig = FrameReplayConfig()
    """The replay table."""


@dataclasses.dataclass(frozen=True)
class PixelNoiseSettings(PixelSettings):
    """What an agent with `NoiseSettings` does differently from pixels, by default as in DrQ-v2.

    Yarats et al. 2021 (arXiv:2107.09645), unless stated otherwise.
    """

    squash_gradient: Literal["tanh", "inverting"] = "inverting"
    """Derivative of the tanh at the policy's output. From state the default is `tanh`, as in
    DrQ-v2."""
    preactivation_penalty: float = 0.0
    """Weight, in the policy's loss, of half the squared excess over 2 of the inputs of the policy's
    tanh. From state the default is 1e-3; from pixels, where gradients are inverted, a penalty was
    not tried."""
    exploration_random_steps: int = 0
    """Environment steps, over all actors, before the policy acts. From state the default is 5,000;
    from pixels, the initial noise is as wide as the range of actions."""
    exploration_sigma: float = 1.0
    """Initial standard deviation of the actors' noise; actions span [-1, 1]."""
    exploration_sigma_end: float | None = 0.1
    """Standard deviation of the noise after `--agent.exploration-steps`. None: constant."""
    exploration_steps: int = 40_000
    """Environment steps over which the standard deviation changes linearly. DrQ-v2 uses 100,000 for
    easy tasks."""
    global_batch_size: int = 128
    """Transitions in one learner step, over all replicas. DrQ-v2 uses 256."""
    target_update_rate: float = 0.01
    """tau: how far an update moves the target networks towards the online networks. 1 copies."""
    steps_per_call: int = 4


def resolved(config: Any, stored: Mapping[str, Any], action_repeat: int) -> Any:
    """Returns the config of a run, with nothing left to "auto".

    Args:
      config: the config of any agent, as it was asked for.
      stored: the config with which the run began, as plain data; empty for a new run.
      action_repeat: steps of the simulator in an agent step.
    """
    config = adopted(config, stored)
    changes: dict[str, Any] = {}
    if getattr(config, "discount", None) == AUTO:
        changes["discount"] = _DISCOUNT_OF_STEP**action_repeat
    if getattr(config, "precision", None) == AUTO:
        from rl_replicator.layers import precision  # Imports TensorFlow.

        changes["precision"] = precision.resolve(AUTO)
    return as_stored(dataclasses.replace(config, **changes), "agent.")


def one_by_one(config: Any) -> Any:
    """Returns the agent's config with replay items of one transition each.

    Args:
      config: the config of any agent.
    """
    replay = getattr(config, "replay", None)
    if not isinstance(replay, ReplayConfig):
        return config
    return dataclasses.replace(config, replay=dataclasses.replace(replay, transitions_per_item=1))
