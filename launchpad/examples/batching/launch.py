"""A server that answers calls of several clients in one batch, as for inference on a GPU."""

import numpy as np
from absl import app, flags

import launchpad as lp

_NUM_CLIENTS = flags.DEFINE_integer("num_clients", 2, "Number of clients.")
_NUM_CALLS = 10


class Doubler:
    """Doubles numbers, those of a batch at once."""

    def __init__(self, batch_size: int):
        """Makes `compute` wait for this number of calls."""
        self.compute = lp.batched_handler(batch_size=batch_size)(self._compute)
        self._num_clients, self._num_done = batch_size, 0

    def _compute(self, values: np.ndarray) -> np.ndarray:
        return 2 * values  # [B]

    def done(self) -> None:
        """Stops the program when all clients have called this."""
        self._num_done += 1
        if self._num_done == self._num_clients:
            lp.stop()


class Caller:
    """Calls the server again and again."""

    def __init__(self, number: int, server: lp.CourierClient):
        """Stores its number and the server's client."""
        self._number, self._server = number, server

    def run(self) -> None:
        """Prints the sum of the answers."""
        values = [self._number + call for call in range(_NUM_CALLS)]
        answers = [self._server.compute(np.float32(value)) for value in values]
        print(f"client {self._number}: {sum(answers):g}", flush=True)
        self._server.done()


def make_program() -> lp.Program:
    """Returns a program of one server and its clients."""
    program = lp.Program("batching")
    num_clients = _NUM_CLIENTS.value
    server = program.add_node(lp.CourierNode(Doubler, num_clients), label="server")
    with program.group("clients"):
        for number in range(num_clients):
            program.add_node(lp.CourierNode(Caller, number, server))
    return program


def main(argv: list[str]) -> None:
    """Launches the program; the end of the script waits for it."""
    del argv
    lp.launch(make_program())


if __name__ == "__main__":
    app.run(main)
