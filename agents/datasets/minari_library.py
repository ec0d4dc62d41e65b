"""Minari, if it is installed, and what this project's datasets add to its format.

Observations and actions are those of agents: flat float32 vectors, and actions in [-1, 1]. `infos`
holds the discounts, `[T + 1]`, of which the first is 1.
"""

from typing import Any

from rl_replicator.errors import UsageError

# Key of what this project adds to the metadata of a dataset.
METADATA = "rl_replicator"
# Key of the discounts among the infos of an episode. It names this project, because others may call
# anything a discount, such as gamma, and Minari keeps only the episodes of datasets that it
# combines.
DISCOUNT = "rl_replicator_discount"


def imported() -> Any:
    """Imports Minari.

    Raises:
      UsageError: if it is not installed.
    """
    try:
        import h5py  # noqa: F401 - Minari reads and writes its files with it.
        import minari
    except ModuleNotFoundError:
        raise UsageError(
            "expected Minari for datasets, found none; install it: pip install "
            "'rl-replicator[data]'"
        ) from None
    return minari
