"""The errors of environments that a user names. Each message is one line."""


class EnvironmentUsageError(ValueError):
    """The base class of errors in a user's choice or definition of an environment."""


class EnvironmentNameError(EnvironmentUsageError):
    """No environment has this name."""


class EnvironmentSpecError(EnvironmentUsageError):
    """The environment's actions, observations, rewards or frames do not fit continuous control."""


class EnvironmentDataError(EnvironmentUsageError):
    """The environment returned an observation, reward or frame that violates its specs."""


class RenderingUnavailableError(RuntimeError):
    """No OpenGL library of this machine renders without a screen."""


# The errors that the command line prints as one line; registered in pyproject.toml.
USAGE_ERRORS = (EnvironmentUsageError, RenderingUnavailableError)
