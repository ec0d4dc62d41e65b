"""A consumer that calls several producers at the same time."""

from collections.abc import Sequence

import launchpad as lp


class Producer:
    """Does a piece of work for each call."""

    def work(self, context: int) -> int:
        """Returns the result of the piece with this number."""
        return context


class Consumer:
    """Collects the work of all producers."""

    def __init__(self, producers: Sequence[lp.CourierClient]):
        """Stores the producers' clients, which stand for the handles given to the node."""
        self._producers = producers

    def run(self) -> None:
        """Takes a step, and stops the program."""
        self.step()
        lp.stop()

    def step(self) -> None:
        """Prints the sum of the results of all producers."""
        futures = [
            producer.futures.work(context) for context, producer in enumerate(self._producers)
        ]
        print("Results:", sum(future.result() for future in futures), flush=True)


def make_program(num_producers: int) -> lp.Program:
    """Returns a program of one consumer and its producers."""
    program = lp.Program("consumer_producers")
    with program.group("producer"):
        producers = [program.add_node(lp.CourierNode(Producer)) for _ in range(num_producers)]
    program.add_node(lp.CourierNode(Consumer, producers=producers), label="consumer")
    return program
