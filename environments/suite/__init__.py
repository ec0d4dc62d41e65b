"""The tasks of the dm_control suite, with a faster physics step."""

from environments.suite.tasks import domains, make, names

__all__ = ["domains", "make", "names"]
