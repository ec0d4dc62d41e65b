"""A learner that trains on a replay table: any module with a `step_fn`, replicated."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

import rl_replicator as rr
from agents.learning.variables import select
from agents.replay.priorities import PriorityWriter
from agents.replay.transitions import Sample


class StepModule(Protocol):
    """What an agent writes: variables, and one step as for one machine."""

    num_steps: tf.Variable

    def step_fn(self, sample: Sample) -> Any:
        """One step; returns `keys`, `priorities` and `metrics`."""
        ...

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Copies of the named networks' variables, by path."""
        ...


class ReplayLearner:
    """Runs a module's step, replicated, on the rows of a replay table.

    After each call of some steps the rows' new priorities go back to the table and a copy of the
    published weights is kept for the actors, so that nobody ever reads weights in the middle of an
    update. (`agents.agent.Learner` is the contract.)
    """

    def __init__(
        self,
        module: StepModule,
        replicator: rr.Replicator,
        input_fn: Callable[[Any], tf.data.Dataset],
        replay_address: str,
        steps_per_call: int,
        published: Sequence[str],
    ):
        """Connects module, input and table, and compiles the step.

        Args:
          module: made inside `replicator.scope()`.
          replicator: runs the step.
          input_fn: `InputContext` -> dataset of `Sample`s.
          replay_address: "host:port" of the table's server, for the priorities.
          steps_per_call: learner steps in one compiled call.
          published: names of the networks that actors ask for.
        """
        self._module = module
        self._replicator = replicator
        self.published = tuple(published)
        self._inputs = replicator.make_inputs(input_fn, per_replica=True)
        self._step = replicator.replicate(module.step_fn, self._inputs, steps_per_call)
        self._priorities = PriorityWriter(replay_address)
        self._num_steps = int(module.num_steps.numpy())
        self._steps_per_call = steps_per_call
        self._metrics: Mapping[str, Any] = {}
        self._lock = threading.Lock()
        self._weights = module.get_variables(self.published)

    def step(self) -> None:
        """Runs one compiled call; blocks until the table has the rows.

        Raises:
          rl_replicator.StepCancelled: if `cancel` was called while it waited for rows.
        """
        outputs = self._step()
        self._priorities.write(
            [(output.keys, output.priorities) for output in self._replicator.local_results(outputs)]
        )
        weights = self._module.get_variables(self.published)
        with self._lock:
            self._metrics = outputs.metrics
            self._weights = weights
        self._num_steps += self._steps_per_call

    def cancel(self) -> None:
        """Makes a `step` that waits for rows raise `rl_replicator.StepCancelled`."""
        self._step.cancel()

    @property
    def num_steps(self) -> int:
        """Learner steps done since the beginning of the run."""
        return self._num_steps

    def starved(self) -> bool:
        """Whether a `step` at this moment would have to wait for its input."""
        return self._inputs.num_ready() == 0

    def metrics(self) -> dict[str, float]:
        """Figures of the last call, averaged over its steps and over this process's replicas."""
        with self._lock:
            metrics = self._metrics
        if not metrics:
            return {}
        replicas = self._replicator.local_results(metrics)
        figures = {
            name: float(np.mean([np.mean(replica[name]) for replica in replicas]))
            for name in replicas[0]
        }
        figures["dropped_priority_batches"] = float(self._priorities.num_dropped_batches)
        return figures

    def get_variables(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """The weights after the last call, by path.

        Raises:
          KeyError: if a name is not published.
        """
        with self._lock:
            weights = self._weights
        return select(weights, names)

    def trackables(self) -> dict[str, Any]:
        """All variables that a checkpoint must hold."""
        return {"module": self._module}

    def refresh(self) -> None:
        """Publishes the variables as they are: after a restore, or a call that was cancelled."""
        self._num_steps = int(self._module.num_steps.numpy())
        with self._lock:
            self._weights = self._module.get_variables(self.published)

    def close(self) -> None:
        """Writes the last priorities; ends the threads of priorities and input."""
        self._priorities.close()
        self._inputs.close()
