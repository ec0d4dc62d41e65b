"""The policy of an actor: networks that get their weights from the learner, as one function."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import sonnet as snt
import tensorflow as tf

from agents.acting.frame_stack import ObservationHistory
from agents.acting.numpy_policy import NumpyPolicy
from agents.agent import VariableSource
from agents.learning.variables import check_arrays, named_variables, names_with_variables
from rl_replicator.exports.program import NotPortableError
from rl_replicator.step import random_ops


class ActingPolicy(NamedTuple):
    """A policy, ready to act.

    Attributes:
      networks: built modules by the names under which the learner serves their variables.
      act: [B, ...] observations of the agent -> nest of [B, ...] tensors: an action, or the
        parameters of a distribution over actions. It is traced as written, without AutoGraph.
      observation_spec: the spec of one observation of the agent.
      make_history: makes the object that turns the observations of one environment into those of
        the agent.
    """

    networks: Mapping[str, snt.Module]
    act: Callable[[tf.Tensor], Any]
    observation_spec: tf.TensorSpec
    make_history: Callable[[], ObservationHistory]


class PolicyFunction(Protocol):
    """A compiled policy for batches of one size."""

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes new weights, path -> array; raises ValueError if one is missing or misshapen."""
        ...

    def __call__(self, observations: np.ndarray) -> Any:
        """Returns a nest of fresh arrays [B, ...] for observations [B, ...]."""
        ...


class TensorFlowPolicy:
    """A policy computed by TensorFlow, for networks whose arithmetic takes most of the time."""

    def __init__(self, act: Any, variables: Mapping[str, tf.Variable]):
        """Stores the function.

        Args:
          act: a `tf.types.experimental.ConcreteFunction` of observations [B, ...].
          variables: those of the policy's networks, by path.
        """
        self._act = act
        self._variables = variables

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """See `PolicyFunction`."""
        check_arrays(self._variables, arrays)
        for path, variable in self._variables.items():
            variable.assign(arrays[path])

    def __call__(self, observations: np.ndarray) -> Any:
        """See `PolicyFunction`."""
        outputs = self._act(tf.constant(observations))
        return tf.nest.map_structure(lambda output: output.numpy(), outputs)


class ServedPolicy:
    """A compiled policy with the weights of a `VariableSource`."""

    def __init__(self, policy: ActingPolicy, source: VariableSource, batch_size: int):
        """Compiles the policy and fetches its weights.

        Args:
          policy: the policy.
          source: serves the weights.
          batch_size: observations in one call.
        """
        self._function = compile_policy(policy, batch_size)
        self._names = names_with_variables(policy.networks)
        self._source = source
        self.update()

    def __call__(self, observations: np.ndarray) -> Any:
        """Returns a nest of arrays [B, ...] for observations [B, ...] of the agent."""
        return self._function(observations)

    def update(self) -> None:
        """Fetches the newest weights."""
        self._function.load(self._source.get_variables(self._names))


def compile_policy(policy: ActingPolicy, batch_size: int) -> PolicyFunction:
    """Compiles a policy: to NumPy if NumPy has all of its operations, otherwise to TensorFlow.

    NumPy has those of fully connected networks, which are small, and no convolutions.

    Args:
      policy: the policy.
      batch_size: observations in one call.
    """
    act, variables = trace_policy(policy, batch_size)
    try:
        return NumpyPolicy(act, variables)
    except NotPortableError:
        return TensorFlowPolicy(act, variables)


def trace_policy(policy: ActingPolicy, batch_size: int) -> tuple[Any, dict[str, tf.Variable]]:
    """Traces a policy.

    Args:
      policy: the policy.
      batch_size: observations in one call.

    Returns:
      A `tf.types.experimental.ConcreteFunction` of observations [B, ...], and the variables of the
      policy's networks, by path.
    """
    spec = policy.observation_spec
    # AutoGraph takes half a second in every process. Networks do not need it: the learner's step
    # runs them as written, too.
    act = tf.function(lambda observations: policy.act(observations), autograph=False)
    act = act.get_concrete_function(tf.TensorSpec([batch_size, *spec.shape], spec.dtype))
    random_ops.check(act)
    variables: dict[str, tf.Variable] = {}
    for name, network in policy.networks.items():
        variables.update(named_variables(name, network))
    return act, variables
