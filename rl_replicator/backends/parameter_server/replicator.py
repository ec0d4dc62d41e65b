"""A replicator over workers that do not wait for one another, with parameter servers."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler, serving, watch
from rl_replicator.backends.parameter_server import step as asynchronous_step
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports
from rl_replicator.optimizers import slots
from rl_replicator.step import host
from rl_replicator.step.inputs import contract


class MultiWorkerAsyncReplicator(replicator.Replicator):
    """Variables on parameter servers, which workers read and update asynchronously.

    All tasks of the cluster run the same program. In the `chief`, the constructor returns and the
    program continues. In a `worker` or `ps`, the constructor serves the chief and ends the process
    when the chief has ended or, on several machines, when the chief has not been restarted in time.

    Each step runs on one worker, so there is one replica and nothing to average;
    `per_replica_batch_size(B)` is B. `input_fn` is called once for every worker, which should read
    its own part of the data (`InputContext.shard`). Workers read the data themselves, so it cannot
    come from Python code such as a generator.

    The staleness of a step is the number of updates by other steps between its read of the
    variables and its own update. `max_staleness` bounds it.
    Every step is taken at least once: if a worker dies, another repeats its call, while the updates
    that it made remain. The repeated call also counts towards the bound.

    Use optimizers that update a variable in a single operation, such as `rr.optimizers.Adam` and
    `snt.optimizers.SGD`. Other optimizers read, compute and assign, and if two workers do so at the
    same time, one update is lost. With Adam, concurrent updates of the same row by sparse gradients
    may be lost, too.
    """

    def __init__(
        self,
        cluster: cluster_lib.Cluster | None = None,
        *,
        max_staleness: int | None = None,
        start_timeout: float = 120.0,
        worker_timeout: float = 60.0,
    ):
        """In the chief, waits for all workers and parameter servers.

        Args:
          cluster: one chief, workers and parameter servers; None to read it from TF_CONFIG.
          max_staleness: maximum staleness of a step. 0 runs one call at a time. None allows up to
            two calls per worker at the same time. With `steps_per_call=K`, a bound below K runs
            one call at a time.
          start_timeout: seconds for all processes to start, and for a chief on several machines to
            be restarted.
          worker_timeout: seconds to wait if all workers are unreachable, or if no results arrive
            and a worker or parameter server does not answer.

        Raises:
          ConfigError: if the cluster lacks a type of task, an argument is invalid, or the port of
            this process is not free.
          WorkerLost: if processes did not start; names them.
          SystemExit: in a worker or parameter server, when the chief has ended.
        """
        if max_staleness is not None and max_staleness < 0:
            raise errors.ConfigError(
                f"expected max_staleness to be at least 0, got {max_staleness}; use None for no "
                "bound"
            )
        errors.check_seconds(start_timeout=start_timeout, worker_timeout=worker_timeout)
        cluster = cluster_lib.Cluster.from_environment() if cluster is None else cluster
        _check_cluster(cluster)
        if cluster.task_type != "chief":
            serving.serve(cluster, start_timeout)
        ports.check_may_listen(cluster.own_address, cluster.all_addresses)
        tasks = watch.Watch(cluster, worker_timeout)
        tasks.wait_for_all(start_timeout)
        servers = [
            f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(len(cluster.addresses["ps"]))
        ]
        strategy = _connect(cluster)
        ports.confine_if_local(cluster.own_address, cluster.all_addresses)
        self._home = servers[0]
        self.num_workers = len(cluster.addresses["worker"])
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        bound = scheduler.Bound(max_staleness, self.num_workers)
        self._schedule = scheduler.CallScheduler(self._coordinator, bound, tasks)
        super().__init__(_WorkersHost(strategy, servers, self._schedule))

    @property
    def is_concurrent(self) -> bool:
        """Whether several workers may take steps at the same time, on the same variables."""
        return self.num_workers > 1 and not self._schedule.is_serial

    @classmethod
    def from_text(cls, argument: str) -> "MultiWorkerAsyncReplicator":
        """Parses "max_staleness=4", or no argument; see `Replicator.from_text`."""
        if not argument:
            return cls()
        name, _, number = argument.partition("=")
        if name != "max_staleness" or not number.isdecimal():
            raise errors.ConfigError(
                "expected no argument, or a bound as in multi_worker_async:max_staleness=4, got "
                f"{argument!r}; write a number from 0"
            )
        return cls(max_staleness=int(number))

    def _make_inputs(self, *arguments: Any) -> contract.Inputs:
        input_fn, _, pad_to, _ = arguments  # A worker has one replica, and prefetches no rows.
        return asynchronous_inputs.make(
            input_fn,
            self.num_workers,
            pad_to,
            coordinator=self._coordinator,
            schedule=self._schedule,
            home=self._home,
        )

    def _make_step(self, *arguments: Any) -> asynchronous_step.AsynchronousStep:
        step_fn, inputs, steps_per_call, _ = arguments  # One replica has nothing to compare.
        return asynchronous_step.AsynchronousStep(
            self._host, self._schedule, step_fn, inputs, steps_per_call
        )


class _WorkersHost(host.Host):
    """The workers, any one of which takes a step, and the parameter servers with the variables."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        servers: Sequence[str],
        schedule: scheduler.CallScheduler,
    ):
        super().__init__(strategy)
        self._sizes = dict.fromkeys(servers, 0)
        self._schedule = schedule

    @property
    def num_replicas(self) -> int:
        return 1  # Each step runs on one worker.

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        # Not the strategy's own scope, which would partition variables and require steps to run in
        # `strategy.run`; a single replica needs neither.
        with self.registry.recording(), tf.variable_creator_scope(self._place):
            yield

    def run(self, function: Callable[[int, Any], Any], parts: Sequence[Any]) -> list[Any]:
        return [function(0, parts[0])]

    @contextlib.contextmanager
    def paused(self, variables: Collection[tf.Variable] = ()) -> Iterator[None]:
        with super().paused(variables):
            self._schedule.drain()
            yield

    def _place(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        """Creates an unpartitioned variable on the parameter server with the fewest bytes.

        Slots of an optimizer go to the server of their parameter: a fused update needs all of them.
        """
        parameter = slots.owner(None)
        if parameter is None:
            device = min(self._sizes, key=lambda name: self._sizes[name])
        else:
            device = parameter.device
        with tf.device(device):
            variable = next_creator(**kwargs)
        # Every variable costs a message besides its bytes, so it counts as some more bytes.
        size = (variable.shape.num_elements() or 0) * variable.dtype.size
        self._sizes[device] += size + 1024
        return variable


def _check_cluster(cluster: cluster_lib.Cluster) -> None:
    counts = {kind: len(cluster.addresses.get(kind, ())) for kind in cluster_lib.TASK_TYPES}
    if counts["chief"] != 1 or not counts["worker"] or not counts["ps"]:
        found = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        raise errors.ConfigError(
            "expected a cluster of one chief, at least one worker and at least one ps, got "
            f"{found}; add the missing tasks, or use multi_worker for workers only"
        )
    if cluster.task_type == "evaluator":
        raise errors.ConfigError(
            "expected the task of a chief, a worker or a ps, got an evaluator, which takes no "
            "steps; use single_device there"
        )


def _connect(cluster: cluster_lib.Cluster) -> tf.distribute.Strategy:
    ports.bypass_proxy(cluster.all_addresses)
    members = {kind: list(cluster.addresses[kind]) for kind in ("chief", "worker", "ps")}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(members), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)
