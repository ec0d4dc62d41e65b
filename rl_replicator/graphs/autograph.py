"""Converts Python control flow of users' functions to that of TensorFlow."""

from collections.abc import Callable
from typing import Any

from tensorflow.python.autograph.core import ag_ctx, converter
from tensorflow.python.autograph.impl import api


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a user's function use `if` and `for` on tensors, as in any `tf.function`."""
    options = converter.ConversionOptions(recursive=True)
    context = ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED, options)
    return api.tf_convert(function, context, user_requested=True)
