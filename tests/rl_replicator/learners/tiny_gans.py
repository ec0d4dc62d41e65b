"""SN-GANs that train on tiny images, and what their variables hold."""

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from rl_replicator.learners.sngan import SNGANConfig
from rl_replicator.learners.sngan.learner import SNGANLearner
from rl_replicator.runs.replicas import replicator_name

STEPS = 20
DISCRIMINATOR_STEPS = 2


def make(folder, replicas=1, **settings):
    defaults = {
        "data_dir": folder,
        "width": 4,
        "precision": "float32",
        "steps": STEPS,
        "global_batch_size": 16,
        "discriminator_steps": DISCRIMINATOR_STEPS,
        "noise_size": 8,
        "samples": 37,
    }
    replicator = rr.make(replicator_name(str(replicas)))
    learner = SNGANLearner(replicator, SNGANConfig(**(defaults | settings)))
    learner.replicator = replicator
    return learner


def copies(learner):
    """The values of all variables on all replicas, [replicas, ...] each."""
    modules = [value for value in learner.trackables().values() if isinstance(value, tf.Module)]
    variables = [variable for module in modules for variable in module.variables]
    return {
        f"{i} {variable.name}": np.stack(
            [copy.numpy() for copy in getattr(variable, "values", None) or (variable,)]
        )
        for i, variable in enumerate(variables)
    }
