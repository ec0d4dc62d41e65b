"""Run directories with weights that were not trained."""

import dataclasses

import tensorflow as tf

from agents import td3
from agents.learning.weights import WeightsPart, copy_variables
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.runs.run_directory import RunDirectory

# Without an average, actors and evaluators use the same policy.
CONFIG = td3.command.config(policy_layers=(8,), critic_layers=(8,), policy_average=1)


def make_run(path, env, config=CONFIG, command=td3.command):
    """Writes the directory of a run of TD3, or of another agent, after 1,000 environment steps."""
    options = AgentOptions(env=env, agent=config)
    run = RunDirectory(path)
    path.mkdir()
    run.describe(command.name, options.identity, dataclasses.asdict(options) | {"run_dir": None})
    agent = command.make_agent(config, options.task.spec())
    tf.random.set_seed(1)
    networks = agent.make_acting_networks()
    arrays = copy_variables(networks, [name for name in networks if networks[name].variables])
    state = {"environment_steps": 1000, "learner_steps": 400}
    Checkpointer(run.checkpoints).save(
        400, {"weights": WeightsPart(arrays), "progress": JsonPart(lambda: state, lambda _: None)}
    )
    return path
