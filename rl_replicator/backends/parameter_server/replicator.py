"""Steps on the workers of a cluster that do not wait for one another."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from rl_replicator import errors, replicator
from rl_replicator.backends.parameter_server import inputs as asynchronous_inputs
from rl_replicator.backends.parameter_server import scheduler, serving, staleness, watch
from rl_replicator.backends.parameter_server import step as asynchronous_step
from rl_replicator.checkpoints import pending_work
from rl_replicator.jobs import cluster as cluster_lib
from rl_replicator.jobs import ports
from rl_replicator.step import host
from rl_replicator.step import inputs as inputs_lib


class MultiWorkerAsyncReplicator(replicator.Replicator):
    """Variables on parameter servers; workers that read them, and update them, each in its time.

    The same program is started for every task of the cluster. In the `chief` the constructor
    returns and the program goes on; in every `worker` and `ps` the constructor serves the chief,
    and ends the process when the chief is gone.

    A step runs on one worker. It is a whole step: there is one replica, and nothing to average;
    `per_replica_batch_size(B)` is B. `input_fn` is called once for every worker, each of which
    should read a part of the data of its own (`InputContext.shard`).

    A step is stale by the number of other steps whose updates come between its reading of the
    variables and its own update. `max_staleness` bounds it, and `step.staleness()` tells it. Steps
    are taken at least once: the call of a worker that dies is done again by another, and what it
    had updated before it died remains. Such a call counts as two then, also against the bound.

    Use optimizers that update a variable in one operation (`rr.optimizers.Adam`,
    `snt.optimizers.SGD`); others read, compute and assign, and of two workers that do it at once
    one is lost.
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
          cluster: one chief, workers and parameter servers; from TF_CONFIG if None.
          max_staleness: the most that a step may be stale; 0 for one call after the other, None for
            what up to two calls a worker bring about. With `steps_per_call` of K, K steps are taken
            for one, and a bound below K means one call after the other.
          start_timeout: seconds for all processes to start.
          worker_timeout: seconds to wait if all workers are gone, or if nobody returns anything.

        Raises:
          ConfigError: the cluster lacks a kind of task, or an argument cannot be used; also if the
            own port is not free.
          WorkerLost: names the processes that did not start.
          SystemExit: in a worker or parameter server, when the chief is gone.
        """
        _check(max_staleness, start_timeout, worker_timeout)
        cluster = cluster_lib.Cluster.from_environment() if cluster is None else cluster
        _check_cluster(cluster)
        if cluster.task_type != "chief":
            serving.serve(cluster, start_timeout)
        ports.check_is_free(cluster.own_address)
        tasks = watch.Watch(cluster, worker_timeout)
        tasks.wait_for_all(start_timeout)
        servers = [
            f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(len(cluster.addresses["ps"]))
        ]
        strategy = _connect(cluster)
        self._home = servers[0]
        self.num_workers = len(cluster.addresses["worker"])
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self._schedule = scheduler.Scheduler(
            self._coordinator,
            staleness.Bound(max_staleness, self.num_workers),
            tasks,
            2 * self.num_workers,
        )
        super().__init__(_Host(strategy, servers, self._schedule))
        with self.scope():
            self._version = tf.Variable(0, dtype=tf.int64, trainable=False, name="version")
        pending_work.register(self)

    @classmethod
    def from_text(cls, argument: str) -> "MultiWorkerAsyncReplicator":
        if not argument:
            return cls()
        name, _, number = argument.partition("=")
        if name != "max_staleness" or not number.isdecimal():
            raise errors.ConfigError(
                "expected nothing or a bound as in multi_worker_async:max_staleness=4, got "
                f"{argument!r}; write a number from 0"
            )
        return cls(max_staleness=int(number))

    def make_inputs(
        self,
        input_fn: inputs_lib.InputFn,
        per_replica: bool = False,
        pad_to: int | None = None,
    ) -> inputs_lib.Inputs:
        """Calls `input_fn(InputContext)` for every worker; see `Replicator.make_inputs`.

        `per_replica` makes no difference. The data is read on the workers, so it may not come from
        Python code such as a generator.
        """
        del per_replica
        return asynchronous_inputs.make(
            input_fn,
            self.num_workers,
            pad_to,
            coordinator=self._coordinator,
            news=self._schedule.news,
            home=self._home,
        )

    def replicate(
        self,
        step_fn: Callable[[Any], Any],
        inputs: inputs_lib.Inputs,
        steps_per_call: int | None = None,
        check_every: int | None = 1000,
    ) -> asynchronous_step.AsynchronousStep:
        del check_every  # There is one replica.
        if not isinstance(inputs, asynchronous_inputs.WorkerInputs):
            raise errors.ConfigError(
                f"expected the inputs of this replicator, got {type(inputs).__name__}; make them "
                "with its make_inputs"
            )
        return asynchronous_step.AsynchronousStep(
            self._host, self._schedule, self._version, step_fn, inputs, steps_per_call
        )

    def synchronize(self) -> None:
        """Waits until the workers have ended all that was begun, and begins nothing.

        Then the variables stand still until the next step is called; results that were not
        returned yet are by the next calls. `Checkpointer` does this by itself.

        Raises:
          WorkerLost: as a step would.
        """
        super().synchronize()


class _Host(host.Host):
    """Any one worker at a time; the variables are on the parameter servers."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        servers: Sequence[str],
        schedule: scheduler.Scheduler,
    ):
        super().__init__(strategy)
        self._sizes = dict.fromkeys(servers, 0)
        self._schedule = schedule

    @property
    def num_replicas(self) -> int:
        return 1  # Each step runs on one worker.

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        # Not the strategy's own: it would split variables, and have steps run inside
        # `strategy.run`, of which one replica without anything to average has no use.
        with self.registry.recording(), tf.variable_creator_scope(self._place):
            yield

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        return [function(0)]

    def synchronize(self) -> None:
        self._schedule.drain()

    def _place(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        """Creates a variable whole, on the parameter server that holds the least."""
        device = min(self._sizes, key=lambda name: self._sizes[name])
        with tf.device(device):
            variable = next_creator(**kwargs)
        # A scalar costs a message as well as its bytes.
        size = (variable.shape.num_elements() or 0) * variable.dtype.size
        self._sizes[device] += size + 1024
        return variable


def _check(max_staleness: int | None, start_timeout: float, worker_timeout: float) -> None:
    if max_staleness is not None and max_staleness < 0:
        raise errors.ConfigError(
            f"expected max_staleness of at least 0, got {max_staleness}; use None for no bound"
        )
    for name, seconds in (("start_timeout", start_timeout), ("worker_timeout", worker_timeout)):
        if not seconds > 0:
            raise errors.ConfigError(
                f"expected {name} above 0 seconds, got {seconds}; leave it out for its default"
            )


def _check_cluster(cluster: cluster_lib.Cluster) -> None:
    counts = {kind: len(cluster.addresses.get(kind, ())) for kind in cluster_lib.TASK_TYPES}
    if counts["chief"] != 1 or not counts["worker"] or not counts["ps"]:
        found = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        raise errors.ConfigError(
            "expected a cluster of one chief, at least one worker and at least one ps, got "
            f"{found}; add what is missing, or use multi_worker for workers only"
        )
    if cluster.task_type == "evaluator":
        raise errors.ConfigError(
            "expected the task of a chief, a worker or a ps, got an evaluator, which takes no part "
            "in the steps; use single_device there"
        )


def _connect(cluster: cluster_lib.Cluster) -> tf.distribute.Strategy:
    members = {kind: list(cluster.addresses[kind]) for kind in ("chief", "worker", "ps")}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(members), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)
