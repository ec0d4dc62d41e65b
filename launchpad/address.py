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
    """A placeholder for "host:port", bound late.

    A server binds its port first and then announces its address with `publish()`; all others wait
    in `resolve()`. A node that owns the address (`assign()`) and resolves it before it is published
    gets a port that is reserved for it, for servers such as TensorFlow's, which need to be given a
    port.

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
        """Fixes the address by hand, for tests of single nodes; a launch overrides it."""
        self._builder = address_builder

    def bind_to_launcher(self, launcher: lp_runtime.NodeRuntime) -> None:
        """Called by `launch`, so that handles also work in the launching process."""
        self._launcher = launcher

    @property
    def is_launched(self) -> bool:
        """True while a program that this process has launched has a server for this address."""
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
        """Returns the runtime through which this address is resolved here.

        It is one of the program that serves the address, whichever program the calling code belongs
        to. An address that belongs to no node may be published in any program.
        """
        owner = lp_runtime.owner_of(self.key)
        if owner is not None:
            return owner
        if self._launcher is not None and self._builder is None:  # The program has ended.
            return self._launcher
        # A program of the launching process that is not launched yet is no other that runs there.
        return lp_runtime.current() if self._owner is None else lp_runtime.current_node()

    def resolve(self, timeout: float | None = None) -> str:
        """Returns "host:port", waiting for the owner to publish it.

        Args:
          timeout: Seconds to wait; None for as long as the program runs.

        Raises:
          RuntimeError: no program runs here.
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
        return runtime.resolve(self.key, self.name, timeout)

    def publish(self, address: str) -> None:
        """Tells every node of the program where this address is: "host:port".

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
