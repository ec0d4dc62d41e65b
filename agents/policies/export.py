"""The policy of a run as a model for other programs."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from agents.learning.weights import check_arrays, named_variables
from agents.nodes.evaluator import counted
from agents.policies.policy import AgentSource, Policy
from agents.replay.frames import vector_size
from environments import Environment
from environments.flat import DiscreteActions, frame_of, mask_size
from rl_replicator.errors import UsageError
from rl_replicator.exports.model import Card, ExportedModel
from rl_replicator.runs.metrics import read_metrics
from rl_replicator.runs.run_directory import RunDirectory
from rl_replicator.runs.statistics import number

_LOG = logging.getLogger("agents")


def export_policy(
    policy: Policy, source: AgentSource, run: RunDirectory, license_name: str | None
) -> ExportedModel:
    """Makes a model of a policy, from the environment's observation to an action in its own range.

    A wrapper may change both, so the environment of a wrapped task includes its wrappers and has
    the agent's form. From pixels, the model stacks the frames: it returns the stack for the next
    call. So does a policy with a memory with its state.

    Args:
      policy: the policy.
      source: the source of its agent.
      run: the run that trained it.
      license_name: licence that the card names; None for none.

    Raises:
      UsageError: if the agent has no `make_evaluation_policy`.
    """
    if not hasattr(policy.agent, "make_evaluation_policy"):
        raise UsageError(
            f"expected an agent with make_evaluation_policy, as OffPolicyAgent has it, got "
            f"{type(policy.agent).__name__}; subclass OffPolicyAgent to export its policy"
        )
    if not policy.learner_steps:
        _LOG.warning("the policy is untrained: the learner of %s has taken 0 steps", run.path)
    acting = _in_float32(policy.agent, source).make_evaluation_policy(policy.weights)
    for name, network in acting.networks.items():
        variables = named_variables(name, network)
        arrays = policy.weights.get_variables([name]) if variables else {}
        check_arrays(variables, arrays)
        for path, variable in variables.items():
            variable.assign(arrays[path])
    environment = policy.make_environment(seed=0)
    flat = environment if policy.task.pixels is None else environment.wrapped
    action_spec = policy.task.model_action_spec(environment)
    to_own = _to_own(action_spec)
    spec, observed = acting.observation_spec, environment.observation_spec()
    inputs = {"observation": _batches(frame_of(observed))}
    if policy.task.pixels is not None:
        inputs["stack"] = _batches(frame_of(spec))
    if vector_size(observed):
        inputs["vector"] = _batches(spec["vector"])
    if acting.state_size:
        inputs["state"] = tf.TensorSpec([None, acting.state_size])
    card = _card(policy, run, flat, action_spec, license_name)
    environment.close()
    return ExportedModel(_function(acting.act, to_own), inputs, card)


def _in_float32(agent: Any, source: AgentSource) -> Any:
    """Returns the agent with convolutions in float32, which all programs support."""
    config = agent.config
    if getattr(config, "precision", "float32") == "float32":
        return agent
    # Not by calling its class: the factory may be a function that passes further arguments.
    float32 = dataclasses.replace(config, precision="float32")
    return source.make_agent(float32, agent.environment_spec)


def _to_own(spec: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from an agent's actions to those of the environment's own spec.

    Args:
      spec: that spec; the agent's actions are [B, A] in [-1, 1], or [B] int32 numbers.
    """
    if spec.dtype.kind != "f":
        return _numbered(spec)
    low = np.broadcast_to(spec.minimum, spec.shape).astype(np.float32).reshape(-1)
    high = np.broadcast_to(spec.maximum, spec.shape).astype(np.float32).reshape(-1)

    def to_own(action: tf.Tensor) -> tf.Tensor:
        own = action * ((high - low) / 2) + (high + low) / 2
        own = tf.minimum(tf.maximum(own, low), high)
        return tf.reshape(own, [-1, *spec.shape])

    return to_own


def _numbered(spec: Any) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a function from numbers [B] to the combinations that they stand for."""
    table = DiscreteActions(spec, "").table
    rows = table.reshape(len(table), -1).astype(np.float32)  # Exact: the numbers are small.

    def to_own(action: tf.Tensor) -> tf.Tensor:
        own = tf.matmul(tf.one_hot(action, len(rows)), rows)
        return tf.reshape(tf.cast(own, table.dtype), [-1, *spec.shape])

    return to_own


def _batches(spec: Any) -> tf.TensorSpec:
    return tf.TensorSpec([None, *spec.shape], spec.dtype)


def _function(act: Any, to_own: Callable[[tf.Tensor], tf.Tensor]) -> Any:
    """Returns the function to export, of an observation and of what the call before returned.

    Args:
      act: see `ActingPolicy`.
      to_own: see `_to_own`.
    """

    def function(observation: tf.Tensor, **before: tf.Tensor) -> dict[str, tf.Tensor]:
        after = {}
        if "stack" in before:
            rest = before["stack"][..., observation.shape[-1] :]
            observation = after["next_stack"] = tf.concat([rest, observation], axis=-1)
        if "vector" in before:
            observation = {"pixels": observation, "vector": before["vector"]}
        if "state" in before:
            action, after["next_state"] = act(observation, before["state"])
        else:
            action = act(observation)
        return {"action": to_own(action), **after}

    return function


def _card(
    policy: Policy,
    run: RunDirectory,
    environment: Environment,
    action_spec: Any,
    license_name: str | None,
) -> Card:
    identity = run.config()["identity"]
    name, task, wrap = identity["trainable"], policy.task.name or "recorded steps", policy.task.wrap
    taken = 0 if identity.get("offline") else policy.environment_steps  # Else the learner's.
    facts = {
        "agent": name,
        "task": task,
        **({"wrappers": ", ".join(wrap)} if wrap else {}),
        "environment steps": f"{taken:,}",
        "learner steps": f"{policy.learner_steps:,}",
        "return": _return(policy, run),
        "observation": _observation(policy, environment.observation_fields),
        "action": _action(action_spec),
        **({} if license_name is None else {"licence": license_name}),
    }
    usage = _USAGE[policy.task.pixels is not None] + (_WRAPPED if wrap else "")
    usage += "" if getattr(policy.agent, "memory", None) is None else _REMEMBERED
    return Card(f"{name} on {task}", facts, usage, identity, packages_of(environment))


# Packages of interfaces to environments, which simulate nothing.
_NO_SIMULATORS = {"dm_env", "environments"}
# Modules that simulate with MuJoCo.
_MUJOCO = ("dm_control.", "gymnasium.envs.mujoco.")


def packages_of(environment: Environment) -> list[str]:
    """Returns the packages that an environment is built on, judging by its classes.

    Args:
      environment: the environment.

    Returns:
      Names derived from those of modules; packages of these names need not exist.
    """
    made: Any = environment.wrapped
    parts = [made, getattr(made, "unwrapped", None), getattr(made, "physics", None)]
    modules = {base.__module__ for part in parts for base in type(part).__mro__}
    names = {module.partition(".")[0] for module in modules} - _NO_SIMULATORS
    if any(module.startswith(_MUJOCO) for module in modules):
        names.add("mujoco")
    return sorted(name.replace("_", "-") for name in names)


def _return(policy: Policy, run: RunDirectory) -> str:
    """Describes the evaluation of these weights, or else the last one before them."""
    table = read_metrics(run.path, "evaluator")
    steps = table.get("learner_steps", np.zeros(0))
    if not len(steps):
        how = "; `rl-replicator eval RUN_DIR` measures it" if policy.task.name else ""
        return f"not evaluated{how}"
    same = np.flatnonzero(steps == policy.learner_steps)
    before = np.flatnonzero(steps <= policy.learner_steps)
    index = same[-1] if len(same) else before[-1] if len(before) else 0
    row = {column: values[index] for column, values in table.items()}
    text = (
        f"{number(row['episode_return'])} (min {number(row['episode_return_min'])}, max "
        f"{number(row['episode_return_max'])}, {counted(row['episodes'])})"
    )
    return text if len(same) else f"{text}, of the weights after {steps[index]:,.0f} learner steps"


def _observation(policy: Policy, fields: Mapping[str, slice]) -> str:
    repeats = policy.task.action_repeat
    when = f", after every {repeats} environment steps, in which the action is repeated"
    when = when if repeats > 1 else ""
    if policy.task.pixels is not None:
        observations = policy.agent.environment_spec.observations
        shape, names = frame_of(observations).shape, policy.task.pixels.state
        mask = [*fields][-1:] if mask_size(observations) else []
        kept = [*fields] if names == ("all",) else [*names, *mask]
        beside = f"; state: {', '.join(kept)}" if kept else ""
        return f"frame, uint8 {list(shape)}{when}{beside}"
    named = [f"{name} {where.start}:{where.stop}" for name, where in fields.items()]
    return f"float32 vector: {', '.join(named)}{when}"


def _action(spec: Any) -> str:
    limits = (np.broadcast_to(x, spec.shape).ravel() for x in (spec.minimum, spec.maximum))
    ranges = dict.fromkeys(f"[{low:g}, {high:g}]" for low, high in zip(*limits, strict=True))
    dtype = "float32" if spec.dtype.kind == "f" else spec.dtype.name
    return f"{dtype} {list(spec.shape)}, within {', '.join(ranges)}"


# Key: whether the policy is from pixels.
_USAGE = {
    False: (
        "Input `observation`: [B, N] float32, the environment's arrays, flattened and concatenated "
        "in the order above; a mask of actions is one of them. Output `action`: [B, ...] in the "
        "range of the environment's own action spec. The statistics that normalise observations, "
        "if the agent has any, are part of the model."
    ),
    True: (
        "Inputs `observation`: [B, H, W, C] uint8, the newest frame, and `stack`: [B, H, W, C S] "
        "uint8, the output `next_stack` of the call before; at the start of an episode, the first "
        "frame S times. With entries of the state, or a mask, `vector` is [B, N] float32, these "
        "flattened and concatenated. Output `action`: [B, ...] in the range of the "
        "environment's own action spec. Convolutions compute in float32, whatever they did in "
        "training."
    ),
}
_REMEMBERED = (
    " Input `state`: [B, K] float32, the memory: the output `next_state` of the call before, or "
    "zeros at the start of an episode."
)
_WRAPPED = (
    " This is the wrapped environment as the agent sees it, with actions in [-1, 1] or numbered."
)
