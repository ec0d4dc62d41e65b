"""Launches a consumer and its producers."""

from absl import app, flags

import launchpad as lp
from launchpad.examples.consumer_producers.program import make_program

_NUM_PRODUCERS = flags.DEFINE_integer("num_producers", 2, "Number of producers.")


def main(argv: list[str]) -> None:
    """Launches the program; the end of the script waits for it."""
    del argv
    lp.launch(make_program(_NUM_PRODUCERS.value))


if __name__ == "__main__":
    app.run(main)
