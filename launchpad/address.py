"""Network addresses that are known only once the program runs."""

from __future__ import annotations

import abc
import os
import re
import socket
import uuid
from typing import Any

from launchpad import runtime as lp_runtime

_NAME_PATTERN = re.compile("[a-z][a-z0-9]*")


class AbstractAddressBuilder(abc.ABC):
    """Makes the address string at run time."""

    @abc.abstractmethod
    def build(self) -> str:
        """Returns "host:port"."""


class SimpleLocalAddressBuilder(AbstractAddressBuilder):
    """A free port of this machine, chosen at construction."""

    def __init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{probe.getsockname()[1]}"

    def build(self) -> str:
        """Returns the "host:port" chosen at construction."""
        return self._address


class Address:
    """A placeholder for a "host:port" that is known only at run time.

    A server binds its port first and then announces its address with `publish()`; all others wait
    in `resolve()`. A node that owns the address (`assign()`) and resolves it before it is published
    gets a port that it can bind, for servers such as TensorFlow's, which must be given one.

    Attributes:
      name: Name for messages, or None.
      key: Identity, kept when the address is pickled.
    """

    def __init__(self, name: str | None = None):
        if name is not None and not _NAME_PATTERN.fullmatch(name):
            raise ValueError(f"address name {name!r} does not match {_NAME_PATTERN.pattern!r}")
        self.name = name
        self.key = uuid.uuid4().hex
        self._builder: AbstractAddressBuilder | None = None
        self._launcher: lp_runtime.NodeRuntime | None = None
        self._owner: Any = None

    def bind(self, address_builder: AbstractAddressBuilder) -> None:
        """Sets the address manually, for tests of single nodes; a launch overrides it."""
        self._builder = address_builder

    def bind_to_launcher(self, launcher: lp_runtime.NodeRuntime) -> None:
        """Called by `launch`, so that handles also work in the launching process."""
        self._launcher = launcher

    @property
    def is_launched(self) -> bool:
        """True while a running program of this process serves this address."""
        return lp_runtime.is_launcher(self._launcher)

    def assign(self, node: Any) -> None:
        """Makes `node` the owner.

        Raises:
          ValueError: another node already owns it.
        """
        if self._owner is node:
            return
        if self._owner is not None:
            raise ValueError(f"this address belongs to {self._owner!r}; it can't go to {node!r}")
        self._owner = node
        node._addresses.append(self)

    def runtime(self) -> lp_runtime.NodeRuntime | None:
        """Returns the runtime through which this process resolves this address.

        It belongs to the program that serves the address, whichever program the calling code
        belongs to. An address without an owner may be published in any program.
        """
        owner = lp_runtime.owner_of(self.key)
        if owner is not None:
            return owner
        if self._launcher is not None and self._builder is None:  # The program has ended.
            return self._launcher
        # If the owner's program is not launched yet, no other program of this process may stand in.
        return lp_runtime.current() if self._owner is None else lp_runtime.current_node()

    def resolve(self, timeout: float | None = None) -> str:
        """Returns "host:port", waiting for the owner to publish it.

        Args:
          timeout: Seconds to wait; None for as long as the program runs.

        Raises:
          RuntimeError: no program runs here, or no node owns the address.
          TimeoutError: nothing was published in time.
          ProgramStoppedError: nothing was published, and the program is stopping.
        """
        if self._builder is not None and lp_runtime.owner_of(self.key) is None:
            return self._builder.build()
        runtime = self.runtime()
        if runtime is None:
            raise RuntimeError(
                f"address {self.name or self.key} can't be resolved before its program is launched"
            )
        if timeout is None and self.key not in {**runtime.info.owners, **runtime.book}:
            raise RuntimeError(
                f"address {self.name or self.key} belongs to no node of the program, so nobody "
                "will publish it; call node.allocate_address(address) before the launch"
            )
        return runtime.resolve(self.key, self.name, timeout)

    def publish(self, address: str) -> None:
        """Publishes this address, as "host:port", to every node of the program.

        Raises:
          RuntimeError: no program runs here.
        """
        runtime = self.runtime()
        if runtime is None:
            raise RuntimeError("an address can be published only in a running program")
        runtime.publish(self.key, address)

    def __getstate__(self) -> dict[str, Any]:
        # Runtimes and nodes belong to one process.
        return {**self.__dict__, "_launcher": None, "_owner": None}


def get_port_from_address(address: str) -> int:
    """Returns the port of "host:port"; a named port is read from LP_PORT_<name>."""
    port = address.rpartition(":")[2]
    return int(port) if port.isdigit() else int(os.environ[f"LP_PORT_{port}"])
