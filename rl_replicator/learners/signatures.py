"""The annotations of the parameters of a user's function."""

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin


def annotation(function: Callable[..., Any], name: str | None = None) -> Any:
    """Returns the annotation of a parameter; others need not be defined at run time.

    Args:
      function: a function, or a partial of one.
      name: name of the parameter; None for the first one.

    Returns:
      The annotation: a type, or its text if it cannot be evaluated. None if there is none.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Functions in C may have none.
        return None
    if name is None:
        name = next(iter(parameters), "")
    found = parameters[name].annotation if name in parameters else inspect.Parameter.empty
    if found is inspect.Parameter.empty:
        return None
    if isinstance(found, str):
        while isinstance(function, functools.partial):
            function = function.func
        # A class, or an instance with `__call__`, has no `__globals__`, but names its module.
        module = sys.modules.get(getattr(function, "__module__", ""))
        names = getattr(inspect.unwrap(function), "__globals__", vars(module) if module else {})
        try:
            found = eval(found, names)
        except Exception:
            return found
    return get_args(found)[0] if get_origin(found) is Annotated else found
