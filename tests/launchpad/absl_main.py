"""A program in the style of scripts for upstream: absl flags, a batched server, no wait()."""

from __future__ import annotations

import enum
import sys

import numpy as np
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


class Client:
    """Calls the batched method; the last client ends the program."""

    def __init__(self, client_id: int, server):
        self._client_id = client_id
        self._server = server

    def run(self) -> None:
        for x in range(self._client_id, self._client_id + 5):
            result = self._server.compute([x, x + 1])
        assert result.shape == (2,)
        # A single write: print makes two, and the clients may be threads of one process.
        sys.stdout.write(f"{FLAGS.word} {_NUM_CLIENTS.value} {FLAGS.mode is Mode.QUIET}\n")
        if self._server.leave() == _NUM_CLIENTS.value:
            lp.stop()


class Server:
    """Sums the values of each batch."""

    def __init__(self, batch_size: int):
        self._num_left = 0
        self.compute = lp.batched_handler(batch_size=batch_size)(self.compute)

    def compute(self, values):
        return np.tile(np.sum(values, axis=0), (len(values), 1))

    def leave(self) -> int:
        self._num_left += 1
        return self._num_left


def make_program() -> lp.Program:
    program = lp.Program("batching")
    server = program.add_node(lp.CourierNode(Server, _NUM_CLIENTS.value), label="server")
    with program.group("clients"):
        for client_id in range(_NUM_CLIENTS.value):
            program.add_node(lp.CourierNode(Client, client_id, server))
    return program


def main(_) -> None:
    lp.launch(make_program())


if __name__ == "__main__":
    app.run(main)
