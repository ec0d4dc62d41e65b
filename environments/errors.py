"""What can be wrong with an environment that a user names. Each message is one line."""


class EnvironmentUsageError(ValueError):
    """The user asked for something that an environment here cannot be or do."""


class EnvironmentNameError(EnvironmentUsageError):
    """No environment goes by this name."""


class EnvironmentSpecError(EnvironmentUsageError):
    """The environment's actions, observations or rewards do not fit continuous control."""


class EnvironmentDataError(EnvironmentUsageError):
    """The environment returned an observation, reward or frame that its specs do not allow."""


class RenderingUnavailableError(RuntimeError):
    """No OpenGL library of this machine draws without a screen."""


# What the command line shows as one line; registered in pyproject.toml.
USAGE_ERRORS = (EnvironmentUsageError, RenderingUnavailableError)
