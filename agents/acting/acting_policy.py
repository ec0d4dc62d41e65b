"""The policy of an actor: networks that get their weights from the learner, as one function."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import sonnet as snt
import tensorflow as tf
import tree

from agents.agent import VariableSource
from agents.learning.weights import check_arrays, named_variables, names_with_variables
from rl_replicator.exports.program import NotPortableError, Writer
from rl_replicator.exports.standalone import unpacked
from rl_replicator.step import random_ops

# TensorFlow computes these faster.
_SLOW = ("Conv", "MaxPool")


class ObservationHistory(Protocol):
    """Makes the agent's observation from those of the episode so far."""

    def reset(self) -> None:
        """Starts an episode."""
        ...

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Takes the environment's observation and returns the agent's."""
        ...


class LatestObservation:
    """The agent's observation is the environment's latest one."""

    def reset(self) -> None:
        """Does nothing."""

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Returns `observation`."""
        return observation


class FrameStack:
    """Stacks the latest frames; the first one of an episode fills the stack.

    An observation may be `{"pixels": frame, "vector": vector}`, too.
    """

    def __init__(self, size: int):
        """Makes an empty stack.

        Args:
          size: frames in an observation of the agent.
        """
        self._size = size
        self._stack: np.ndarray | None = None

    def reset(self) -> None:
        """Starts an episode."""
        self._stack = None

    def observe(self, observation: Any) -> Any:
        """Adds a frame [H, W, C]; returns [H, W, C * size] in its place, the newest frame last.

        The frame is copied, because cameras reuse their buffer. The returned array is new, but the
        next call reads it.
        """
        if isinstance(observation, Mapping):
            return {**observation, "pixels": self.observe(observation["pixels"])}
        if self._stack is None:
            frames = [observation] * self._size
        else:
            frames = [self._stack[..., observation.shape[-1] :], observation]
        self._stack = np.concatenate(frames, axis=-1)
        return self._stack


class NumpyPolicy:
    """A policy that is computed without TensorFlow."""

    def __init__(self, act: Any, variables: Mapping[str, tf.Variable]):
        """Translates the graph of a policy.

        Args:
          act: a `tf.types.experimental.ConcreteFunction` of arguments of static shape: a nest of
            observations [B, ...], and states [B, K] if the policy has any.
          variables: those of the policy's networks, by path.

        Raises:
          NotPortableError: if the graph has an operation that NumPy lacks or computes slowly,
            changes a variable, or reads one that is not in `variables`.
        """
        for op in act.graph.get_operations():
            if op.op_def.is_stateful and op.type != "ReadVariableOp":
                raise NotPortableError(f"expected a policy without effects, got {op.type}")
        self._variables = variables
        self._weights = {path: np.array(v.numpy()) for path, v in variables.items()}
        paths = {id(variable.handle): path for path, variable in variables.items()}
        inputs = act.inputs[: len(act.inputs) - len(act.captured_inputs)]
        self._inputs = [np.zeros(x.shape, x.dtype.as_numpy_dtype) for x in inputs]
        values = {x.name: array for x, array in zip(inputs, self._inputs, strict=True)}
        varying = {*values}  # What depends on the inputs.
        for outside, inside in act.graph.captures:
            if id(outside) in paths:
                values[inside.name] = self._weights[paths[id(outside)]]
            elif outside.dtype != tf.resource:
                values[inside.name] = outside.numpy()
        outputs = tree.flatten(act.structured_outputs)
        writer = Writer({name: name for name in values}, outputs)
        values |= writer.constants
        self._on_load: list[Callable[[], Any]] = []
        self._calls: list[Callable[[], Any]] = []
        for operation in writer.operations:
            if operation["op"] in _SLOW:
                raise NotPortableError(f"expected operations fast in NumPy, got {operation['op']}")
            function, names, out = unpacked(operation)
            arrays = [values[name] for name in names]
            with np.errstate(all="ignore"):
                values[out] = np.asarray(function(*arrays, None))
            is_varying = not varying.isdisjoint(names)
            varying |= {out} if is_varying else set()
            if not any(np.may_share_memory(values[out], x) for x in arrays):  # It is no view.
                call = functools.partial(function, *arrays, values[out])
                (self._calls if is_varying else self._on_load).append(call)
        self._outputs = [values[writer.value(output)] for output in outputs]
        self._structure = tree.map_structure(lambda output: None, act.structured_outputs)

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies weights.

        Args:
          arrays: path -> array; may have other paths too.

        Raises:
          ValueError: if a variable has no array or one of another shape.
        """
        check_arrays(self._variables, arrays)
        for path, weights in self._weights.items():
            np.copyto(weights, arrays[path])
        with np.errstate(all="ignore"):
            for call in self._on_load:
                call()

    def __call__(self, *inputs: Any) -> Any:
        """Evaluates the policy.

        Args:
          *inputs: a nest of observations [B, ...], and states if there are any, of the shapes for
            which the graph was traced.

        Returns:
          A nest of fresh [B, ...] arrays.

        Raises:
          ValueError: if they have another shape.
        """
        for held, given in zip(self._inputs, tree.flatten(inputs), strict=True):
            if given.shape != held.shape:  # NumPy would broadcast a single number.
                raise ValueError(
                    f"expected observations of shape {held.shape}, got {given.shape}; pass "
                    "observations from its environment"
                )
            np.copyto(held, given)
        with np.errstate(all="ignore"):  # As TensorFlow does.
            for call in self._calls:
                call()
        return tree.unflatten_as(self._structure, [output.copy() for output in self._outputs])


class ActingPolicy(NamedTuple):
    """A policy, ready to act.

    Attributes:
      networks: built modules by the names under which the learner serves their variables.
      act: nest of [B, ...] observations of the agent -> nest of [B, ...] tensors: an action, or the
        parameters of a distribution over actions. If the policy has states, observations and states
        [B, K] -> such a nest and the next states. It is traced as written, without AutoGraph.
      observation_spec: the spec of one observation of the agent, a nest of `tf.TensorSpec`.
      make_history: makes the object that turns the observations of one environment into those of
        the agent.
      state_size: K, numbers that a policy with a memory keeps from one observation of an episode to
        the next, float32 and 0 at its start; 0 for one without.
    """

    networks: Mapping[str, snt.Module]
    act: Callable[..., Any]
    observation_spec: Any
    make_history: Callable[[], ObservationHistory]
    state_size: int = 0


class TensorFlowPolicy:
    """A policy computed by TensorFlow, for networks whose arithmetic takes most of the time."""

    def __init__(self, act: Any, variables: Mapping[str, tf.Variable]):
        """Stores the function.

        Args:
          act: a `tf.types.experimental.ConcreteFunction`, see `NumpyPolicy`.
          variables: those of the policy's networks, by path.
        """
        self._act = act
        self._variables = variables

    def load(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copies weights; see `NumpyPolicy`."""
        check_arrays(self._variables, arrays)
        for path, variable in self._variables.items():
            variable.assign(arrays[path])

    def __call__(self, *inputs: Any) -> Any:
        """Evaluates the policy; see `NumpyPolicy`."""
        outputs = self._act(*tf.nest.map_structure(tf.constant, inputs))
        return tf.nest.map_structure(lambda output: output.numpy(), outputs)


class ServedPolicy:
    """A compiled policy with the weights of a `VariableSource`, and its states.

    Attributes:
      states: [B, K] float32, those before the next observations; calls change them in place.
    """

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
        self.states = np.zeros((batch_size, policy.state_size), np.float32)
        self.update()

    def __call__(self, observations: Any) -> Any:
        """Returns a nest of arrays [B, ...] for observations [B, ...] of the agent."""
        if not self.states.size:
            return self._function(observations)
        outputs, states = self._function(observations, self.states)
        np.copyto(self.states, states)
        return outputs

    def reset(self, index: int) -> None:
        """Forgets the episode in row `index`."""
        self.states[index] = 0.0

    def update(self) -> None:
        """Fetches the newest weights."""
        self._function.load(self._source.get_variables(self._names))


def compile_policy(policy: ActingPolicy, batch_size: int) -> NumpyPolicy | TensorFlowPolicy:
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
      A `tf.types.experimental.ConcreteFunction` of observations [B, ...], and of states [B, K] if
      the policy has any, and the variables of the policy's networks, by path.
    """
    spec = tf.nest.map_structure(
        lambda each: tf.TensorSpec([batch_size, *each.shape], each.dtype), policy.observation_spec
    )
    # AutoGraph takes half a second in every process. Networks do not need it: the learner's step
    # runs them as written, too.
    inputs = [spec]
    if policy.state_size:
        inputs.append(tf.TensorSpec([batch_size, policy.state_size], tf.float32))
    act = tf.function(lambda *inputs: policy.act(*inputs), autograph=False)
    act = act.get_concrete_function(*inputs)
    random_ops.check(act)
    variables: dict[str, tf.Variable] = {}
    for name, network in policy.networks.items():
        variables.update(named_variables(name, network))
    return act, variables
