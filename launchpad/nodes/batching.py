"""Methods that handle several calls at once."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import inspect
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from launchpad import runtime as lp_runtime
from launchpad.rpc import server as rpc_server


def batched_handler(
    batch_size: int,
    max_parallelism: int = 1,
    timeout: datetime.timedelta | float = datetime.timedelta(milliseconds=200),
    pad_batch: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Combines up to `batch_size` concurrent calls of a function into one call.

    Arrays get a leading batch dimension; dicts and tuples are batched by element; anything else
    becomes a list, as does an argument that is an array in some calls only. An argument that some
    calls of a batch omit has its default in their rows; one that all omit is not passed. The
    function returns a batch of results; each caller gets one row. Methods are wrapped in the
    constructor, where `self` is bound:

        self.compute = lp.batched_handler(batch_size=8)(self.compute)

    Args:
      batch_size: Largest number of calls in a batch.
      max_parallelism: Number of batches that are handled concurrently.
      timeout: How long the first call of a batch waits for others; a number is in seconds.
      pad_batch: True to fill an incomplete batch with copies of its last call.

    Raises:
      ValueError: a size is not positive.
    """
    if batch_size < 1 or max_parallelism < 1:
        raise ValueError("batch_size and max_parallelism must be positive")
    secs = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else float(timeout)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        if next(iter(signature.parameters), "") == "self":
            raise TypeError(
                f"{function.__qualname__} is not bound: wrap it in the object's constructor"
            )
        batcher = _Batcher(function, batch_size, max_parallelism, secs, pad_batch)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return batcher.call(signature.bind(*args, **kwargs))

        return call

    return decorate


@dataclasses.dataclass(frozen=True)
class _Call:
    arguments: inspect.BoundArguments
    runtime: lp_runtime.NodeRuntime | None
    result: futures.Future[Any]


class _Batcher:
    """Collects calls and runs them in batches, in threads of its own."""

    def __init__(
        self,
        function: Callable[..., Any],
        batch_size: int,
        max_parallelism: int,
        timeout_secs: float,
        pad_batch: bool,
    ):
        self._function = function
        self._batch_size = batch_size
        self._timeout_secs = timeout_secs
        self._pad_batch = pad_batch
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._collecting = threading.Lock()
        self._max_parallelism = max_parallelism
        self._start_lock = threading.Lock()
        self._has_started = False

    def call(self, arguments: inspect.BoundArguments) -> Any:
        with self._start_lock:
            if not self._has_started:
                self._has_started = True
                for _ in range(self._max_parallelism):
                    threading.Thread(target=self._work, name="batch", daemon=True).start()
        call = _Call(arguments, lp_runtime.current(), futures.Future())
        self._calls.put(call)
        return call.result.result()

    def _work(self) -> None:
        while True:
            with self._collecting:  # One batch fills up before the next begins.
                calls = self._collect()
            try:
                rows = self._run(calls)
            except BaseException as error:  # All callers of the batch get it.
                for call in calls:
                    call.result.set_exception(error)
                continue
            for call, row in zip(calls, rows, strict=True):
                call.result.set_result(row)

    def _collect(self) -> list[_Call]:
        calls = [self._calls.get()]
        deadline = time.monotonic() + self._timeout_secs
        while len(calls) < self._batch_size:
            try:
                calls.append(self._calls.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                break
        return calls

    def _run(self, calls: Sequence[_Call]) -> list[Any]:
        arguments = _alike([call.arguments for call in calls])
        if self._pad_batch:
            arguments += [arguments[-1]] * (self._batch_size - len(arguments))
        args, kwargs = _batch(arguments)
        # All calls of a batch are calls of one object, and so come from one node's server.
        lp_runtime.set_thread_runtime(calls[0].runtime)
        results = self._function(*args, **kwargs)
        return [_row(results, i, len(arguments)) for i in range(len(calls))]


def _alike(calls: Sequence[inspect.BoundArguments]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Makes the calls of a batch pass the same arguments in the same way.

    Returns:
      The positional and the keyword arguments of each call.
    """
    given = {name for call in calls for name in call.arguments}
    for call in calls:
        call.apply_defaults()
        call.arguments = {name: call.arguments[name] for name in call.arguments if name in given}
    return [(call.args, call.kwargs) for call in calls]


def _batch(values: Sequence[Any]) -> Any:
    """Turns equal structures into one structure of batches."""
    first = values[0]
    if all(isinstance(value, dict) for value in values):
        for value in values:
            if value.keys() != first.keys():
                raise ValueError(
                    "expected the same keys in all calls of a batch, got "
                    f"{list(first)} and {list(value)}"
                )
        return {key: _batch([value[key] for value in values]) for key in first}
    if all(isinstance(value, tuple) for value in values):
        columns = [_batch(column) for column in zip(*values, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else tuple(columns)
    if all(hasattr(value, "__array__") for value in values):
        import numpy as np  # Only batches of arrays need it.

        return np.stack(values)
    return list(values)


def _row(batch: Any, index: int, size: int) -> Any:
    """Returns one caller's part of a batch of results."""
    if isinstance(batch, dict):
        return {key: _row(value, index, size) for key, value in batch.items()}
    if isinstance(batch, tuple):
        rows = [_row(value, index, size) for value in batch]
        return type(batch)(*rows) if hasattr(batch, "_fields") else tuple(rows)
    if batch is None:
        return None
    if len(batch) != size:
        raise ValueError(f"a batched method got {size} calls and returned {len(batch)} results")
    return batch[index]


def make_courier_server(instance: Any, *args: Any, **kwargs: Any) -> rpc_server.Server:
    """Returns a server of the public methods of `instance`, not started yet.

    Args:
      instance: The object.
      *args: Arguments of `Server`.
      **kwargs: Its keyword arguments.

    Raises:
      ValueError: `thread_pool_size` is not positive.
      OSError: The port is taken.
    """
    server = rpc_server.Server(*args, **kwargs)
    server.bind_methods(instance)
    return server
