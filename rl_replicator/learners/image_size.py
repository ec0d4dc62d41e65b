"""The option `--image-size` of learners whose images may be in memory."""

from rl_replicator.errors import check_option

_SIDES = {"fashion_mnist": 28, "cifar10": 32}


def check_in_memory(data: str, size: int | None) -> None:
    """Checks the option for data in memory, whose images keep their size.

    Args:
      data: name of the data set.
      size: the option: None, 0 for the size of the images, or that size itself.

    Raises:
      ConfigError: if it is any other size.
    """
    expected = f"none with --data {data}, whose images keep their size"
    check_option(size in (None, 0, _SIDES[data]), "image_size", expected, size)
