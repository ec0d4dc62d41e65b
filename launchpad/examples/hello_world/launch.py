"""The smallest program: one node."""

from absl import app

import launchpad as lp


class HelloWorld:
    """Prints a line."""

    def run(self) -> None:
        """Called in the node."""
        print("Hello World!!!")


def make_program() -> lp.Program:
    """Returns a program of one node."""
    program = lp.Program("hello_world")
    program.add_node(lp.PyClassNode(HelloWorld), label="hello_printer")
    return program


def main(argv: list[str]) -> None:
    """Launches the program; the end of the script waits for it."""
    del argv
    lp.launch(make_program())


if __name__ == "__main__":
    app.run(main)
