"""What can be wrong with an environment that a user names. Each message is one line."""


class EnvironmentUsageError(ValueError):
    """The user asked for something that an environment here cannot be or do."""


class EnvironmentNameError(EnvironmentUsageError):
    """No environment goes by this name."""


class EnvironmentSpecError(EnvironmentUsageError):
    """The environment exists, but its actions or observations do not fit a continuous-control agent."""


class RenderingUnavailableError(RuntimeError):
    """No OpenGL library of this machine draws without a screen."""
