"""Random operations whose state is TensorFlow's own, and in no variable."""

import tensorflow as tf

# `tf.random.Generator` is none of them: its state is a variable.
STATEFUL = (
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGammaV3",
    "RandomGamma",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "TruncatedNormal",
)


def find(function: tf.types.experimental.ConcreteFunction) -> str | None:
    """Returns the type and the name of such an operation in a traced function; None without one."""
    definition = function.graph.as_graph_def()
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            if node.op in STATEFUL:
                return f"{node.op} ({node.name})"
    return None
