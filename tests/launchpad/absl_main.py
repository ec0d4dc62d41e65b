"""A program in the style of scripts for upstream: absl flags, no wait()."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable

from absl import app, flags

import launchpad as lp

FLAGS = flags.FLAGS

_NUM_CLIENTS = flags.DEFINE_integer("num_clients", 2, "The number of clients.")
flags.DEFINE_string("word", "unset", "Printed by every client.")


class Mode(enum.Enum):
    """Values of a flag; only the main script defines this class."""

    LOUD = 1
    QUIET = 2


flags.DEFINE_enum_class("mode", Mode.LOUD, Mode, "Printed by every client.")


def client(word: Callable[[], str]) -> None:
    # A single write: print makes two, and the clients may be threads of one process.
    sys.stdout.write(f"{word()} {_NUM_CLIENTS.value} {FLAGS.mode is Mode.QUIET}\n")


def make_program() -> lp.Program:
    from tests.launchpad import absl_word  # Only now are the flags parsed.

    program = lp.Program("flags")
    with program.group("clients"):
        for _ in range(_NUM_CLIENTS.value):
            program.add_node(lp.PyNode(client, absl_word.word))
    return program


def main(_) -> None:
    lp.launch(make_program())


if __name__ == "__main__":
    app.run(main)
