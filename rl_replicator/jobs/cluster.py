"""The addresses of a job's processes, and this process's place among them."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rl_replicator import errors

TASK_TYPES = ("chief", "worker", "ps", "evaluator")
_EXAMPLE = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The tasks of a job, each of which is a process, and the task of this process.

    Attributes:
      addresses: `host:port` of every task, by task type ("chief", "worker", "ps", "evaluator").
      task_type: type of this process's task.
      task_index: index of this process's task among those of its type.

    Raises:
      ConfigError: if an address is not `host:port` or is repeated, if a task type is unknown or
        empty, or if this process's task is not in the cluster.
    """

    addresses: Mapping[str, Sequence[str]]
    task_type: str
    task_index: int

    def __post_init__(self) -> None:
        seen: dict[str, str] = {}
        for task_type, addresses in self.addresses.items():
            _check_type(task_type, addresses)
            for index, address in enumerate(addresses):
                place = f"{task_type} {index}"
                _check_address(place, address)
                if address in seen:
                    raise errors.ConfigError(
                        f"expected a different address for every task, got {address} for both "
                        f"{seen[address]} and {place}; change one of them"
                    )
                seen[address] = place
        present = ", ".join(seen.values())
        if self.task_type == "evaluator" and "evaluator" not in self.addresses:
            raise errors.ConfigError(
                "expected a process that trains, got the evaluator, which has no place in the "
                "cluster (as TFJob writes it): run 'rl-replicator eval RUN_DIR' in it, or leave it "
                "out"
            )
        if f"{self.task_type} {self.task_index}" not in seen.values():
            raise errors.ConfigError(
                f"expected this process's task to be one of {present or 'the cluster'}, got "
                f"{self.task_type} {self.task_index}; correct the task's type and index"
            )

    @classmethod
    def of_workers(cls, addresses: Sequence[str], index: int) -> "Cluster":
        """Makes a cluster of workers only.

        Args:
          addresses: addresses of all workers, the same list in every process.
          index: index of this process in the list.

        Raises:
          ConfigError: see the class.
        """
        return cls({"worker": tuple(addresses)}, "worker", index)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Cluster":
        """Reads TF_CONFIG, as TensorFlow's own strategies do.

        Args:
          environment: environment variables; None for those of this process.

        Raises:
          ConfigError: if TF_CONFIG is not set, not JSON, or not a cluster.
        """
        text = (os.environ if environment is None else environment).get("TF_CONFIG", "")
        if not text:
            raise errors.ConfigError(
                "expected TF_CONFIG in the environment, found none; start the program with "
                "`python -m rl_replicator.jobs --workers 2 -- COMMAND`, or set it on every "
                f"machine, such as {_EXAMPLE}"
            )
        try:
            content = json.loads(text)
            addresses, task = content["cluster"], content["task"]
            return cls(
                # Values that are not lists stay unchanged, so that the error shows them as given.
                {k: tuple(v) if isinstance(v, list) else v for k, v in addresses.items()},
                task["type"],
                int(task["index"]),
            )
        except errors.ConfigError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise errors.ConfigError(
                f"expected TF_CONFIG such as {_EXAMPLE}, got {text[:200]!r} "
                f"({type(error).__name__}: {error}); correct it"
            ) from error

    def to_json(self) -> str:
        """Returns the value of TF_CONFIG for this task."""
        cluster = {kind: list(places) for kind, places in self.addresses.items()}
        return json.dumps(
            {"cluster": cluster, "task": {"type": self.task_type, "index": self.task_index}}
        )

    @property
    def tasks(self) -> tuple[tuple[str, int], ...]:
        """Type and index of all tasks, in the order of `TASK_TYPES`: a chief precedes workers."""
        return tuple(
            (task_type, index)
            for task_type in TASK_TYPES
            for index in range(len(self.addresses.get(task_type, ())))
        )

    def address(self, task_type: str, index: int) -> str:
        """Returns the address of a task, `host:port`.

        Args:
          task_type: type of the task.
          index: index of the task among those of its type.
        """
        return self.addresses[task_type][index]

    @property
    def all_addresses(self) -> tuple[str, ...]:
        """Addresses of all tasks, in the order of `tasks`."""
        return tuple(self.address(*task) for task in self.tasks)

    @property
    def own_address(self) -> str:
        """Address of this process's task, `host:port`."""
        return self.address(self.task_type, self.task_index)


def _check_type(task_type: str, addresses: Any) -> None:
    if task_type not in TASK_TYPES:
        raise errors.ConfigError(
            f"expected tasks of type {', '.join(TASK_TYPES)}, got {task_type!r}; rename it"
        )
    if isinstance(addresses, str) or not addresses:
        raise errors.ConfigError(
            f"expected a list of addresses for {task_type!r}, got {addresses!r}; "
            "list one host:port for each task, or remove the type"
        )


def _check_address(place: str, address: Any) -> None:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_place = host and colon and "/" not in host
    if not (is_place and port.isdecimal() and 0 < int(port) < 65536):
        raise errors.ConfigError(
            f"expected host:port for {place}, got {address!r}; write 10.0.0.1:2222, for example"
        )
