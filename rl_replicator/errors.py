"""Errors that a user can act on."""


class UsageError(ValueError):
    """Bad input: shown as one line by the command line, which then exits with status 2."""

    ag_pass_through = True  # AutoGraph must not turn it into an error of its own.


class ConfigError(UsageError):
    """A setting that cannot be used. The text says what was expected, what came, what to do."""


def check_option(is_good: bool, option: str, expected: str, received: object) -> None:
    """Refuses a setting in the words of the command line.

    Args:
      is_good: whether the setting can be used.
      option: its path, such as "agent.n_step".
      expected: what it should be.
      received: what it is.

    Raises:
      ConfigError: unless `is_good`.
    """
    if not is_good:
        name = option.replace("_", "-")
        raise ConfigError(f"--{name}: expected {expected}, got {received}")


class CheckpointError(UsageError):
    """A checkpoint that cannot be written, or cannot be trusted when read."""


class StepCancelled(Exception):  # noqa: N818 - an event, not a mistake
    """A step met the mark that `cancel()` left in its input. Every earlier step is complete."""


class EndOfData(Exception):  # noqa: N818 - likewise
    """A finite dataset has no element left for the step."""


class StepFailed(RuntimeError):  # noqa: N818 - reads like the two above
    """A step that another process could not take; its replicas stopped together."""


class ReplicasDiffer(UsageError):  # noqa: N818 - likewise
    """Copies of a variable that must be equal differ between replicas."""


# A process that ends because it lost another one: the status says "start the group again".
WORKER_LOST_STATUS = 75


class WorkerLost(RuntimeError):  # noqa: N818 - an event, too
    """Another process of the group is gone, frozen or was restarted; none can go on without it.

    Attributes:
      workers: indices of the lost ones.
    """

    def __init__(self, message: str, workers: tuple[int, ...] = ()):
        super().__init__(message)
        self.workers = workers
