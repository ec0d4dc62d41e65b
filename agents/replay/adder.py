"""The writing end of the replay: it takes steps and writes n-step transitions."""

import collections
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import numpy as np
import reverb
from acme import specs, types
from acme.adders import base

from agents.replay.transitions import RETURNS, STATE, TABLE, Layout

# Transitions that are written between two flushes: a flush costs about as much as an insert.
_WRITTEN_PER_FLUSH = 16
# How long one flush may block before `on_wait` is called, in milliseconds.
_FLUSH_TIMEOUT_MS = 500


class _Step(NamedTuple):
    observation: np.ndarray
    action: np.ndarray
    reward: float
    discount: float
    extras: np.ndarray


def n_step_return(
    rewards: list[float], discounts: list[float], gamma: float
) -> tuple[float, float]:
    """Computes the return over a window of steps and the factor of the value after it.

    R_n = sum_i gamma**i (d_0 ... d_{i-1}) r_i and d = gamma**n (d_0 ... d_{n-1}), for i = 0 .. n-1
    (D4PG, arXiv:1804.08617, the N-step Bellman operator, with the environment's own discounts).
    This is the only place where gamma is applied: the learner bootstraps with `R_n + d * value`.

    Args:
      rewards: n rewards, oldest first.
      discounts: n discounts of the environment, as `dm_env` gives them with those rewards.
      gamma: the agent's discount.

    Returns:
      (R_n, d).
    """
    total, factor = 0.0, 1.0
    for reward, discount in zip(rewards, discounts, strict=True):
        total += factor * reward
        factor *= gamma * discount
    return total, factor


class TableAdder(base.Adder):
    """An adder that waits while the table accepts nothing, in a way that can be given up.

    Subclasses define `reset`, `add`, `pending` and `set_pending`.

    Attributes:
      seconds_waited: seconds spent waiting for the table since the start.
    """

    def __init__(
        self,
        writer: Any,
        layout: Any,
        max_in_flight: int,
        on_wait: Callable[[float], bool | None],
    ):
        """Stores the writer.

        Args:
          writer: writes to the table; an `agents.replay.transitions.EpisodeWriter`, or an object
            with its `complete`, `flush` and `close`.
          layout: checks what is written, as an `agents.replay.transitions.Layout`.
          max_in_flight: what `flush` of the writer leaves unconfirmed.
          on_wait: called with the seconds waited so far, twice a second, while the table does not
            accept what was written; returns True to go on anyway. May raise to give up.
        """
        self._writer, self._layout = writer, layout
        self._max_in_flight = max_in_flight
        self._on_wait = on_wait
        self._observation: np.ndarray | None = None  # The newest one of the current episode.
        self.seconds_waited = 0.0

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode.

        Raises:
          ValueError: if the step is not a first one, or does not fit the layout.
        """
        if not timestep.first():
            raise ValueError(f"expected the first step of an episode, got {timestep.step_type!r}")
        self._layout.check_observation(timestep.observation)
        self.reset()
        self._observation = timestep.observation

    def check(self, action: types.NestedArray, next_timestep: dm_env.TimeStep) -> np.ndarray:
        """Checks an action and the step it led to; returns the observation in front of them.

        Raises:
          ValueError: if `add_first` was not called, or the step does not fit the layout.
        """
        if self._observation is None:
            raise ValueError("expected add_first before add; got an action without an episode")
        self._layout.check_action(action)
        self._layout.check_observation(next_timestep.observation)
        return self._observation

    def flush(self) -> None:
        """Blocks while more than `max_in_flight` is unconfirmed.

        The newest rows may wait for others to be sent with them. Reverb's own calls never block on
        the rate limiter: without this bound, an actor that the limiter holds back would fill the
        machine's memory.
        """
        self._flush(self._max_in_flight, math.inf)

    def finish(self, timeout: float) -> bool:
        """Sends everything, and waits until the table holds it.

        Args:
          timeout: seconds to wait. The table accepts the last ones at the pace of the learner.

        Returns:
          Whether the table has confirmed everything.
        """
        self._writer.complete()
        return self._flush(0, timeout)

    def _flush(self, max_in_flight: int, timeout: float) -> bool:
        """Waits; returns whether at most `max_in_flight` is unconfirmed."""
        started = time.perf_counter()
        try:
            while True:
                try:
                    self._writer.flush(max_in_flight, _FLUSH_TIMEOUT_MS)
                    return True
                except reverb.errors.DeadlineExceededError:
                    waited = time.perf_counter() - started
                    if waited > timeout or self._on_wait(waited):
                        return False
        finally:
            self.seconds_waited += time.perf_counter() - started

    def close(self) -> None:
        """Closes the writer; what is unconfirmed may be lost."""
        self._writer.close()


class NStepTransitionAdder(TableAdder):
    """Writes all n-step transitions of the episodes to the table.

    A transition is written once n steps are known; the last n - 1 steps of an episode bootstrap
    from its last observation over fewer steps. An episode that is cut off (`reset` before its end)
    leaves no partial windows.
    """

    _EXTRAS_OF = 0  # The step of a window whose extras are those of the transition.

    def __init__(
        self,
        client: reverb.Client,
        layout: Layout,
        *,
        n_step: int,
        discount: float,
        initial_priority: float,
        max_in_flight: int,
        on_wait: Callable[[float], bool | None],
        table: str = TABLE,
    ):
        """Opens a writer on the table.

        Args:
          client: the client of the replay server.
          layout: the layout of the items.
          n_step: steps in a full window.
          discount: gamma.
          initial_priority: the initial priority of a transition that the learner has not seen.
          max_in_flight: maximum number of transitions sent but not yet confirmed by the table.
          on_wait: called with the seconds waited so far, twice a second, while the table does not
            accept what was written; returns True to go on anyway. May raise to give up.
          table: name of the table.
        """
        super().__init__(layout.open(client, table), layout, max_in_flight, on_wait)
        self._n_step = n_step
        self._discount = discount
        self._initial_priority = initial_priority
        self._window: collections.deque[_Step] = collections.deque()
        self._written_since_flush = 0

    def reset(self) -> None:
        """Drops the steps of an episode that was cut off."""
        self._window.clear()
        self._observation = None

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode; see `TableAdder`."""
        super().add_first(timestep)
        self._writer.begin(timestep.observation)

    def add(
        self,
        action: types.NestedArray,
        next_timestep: dm_env.TimeStep,
        extras: types.NestedArray = (),
    ) -> None:
        """Adds an action and the step it led to; writes the transitions that this completes.

        Args:
          action: [A] float32.
          next_timestep: what the environment returned for it.
          extras: data on the action for the learner, as specified by the layout's `extras_spec`.

        Raises:
          ValueError: if `add_first` was not called, or the step does not fit the layout.
        """
        observation = self.check(action, next_timestep)
        self._window.append(
            _Step(
                observation,
                action,
                float(next_timestep.reward),
                float(next_timestep.discount),
                self._layout.pack_extras(extras),
            )
        )
        self._observation = next_timestep.observation
        missing = self._n_step - len(self._window)
        if missing == 0:
            self._write_window()
        else:
            # The window of an episode shorter than n steps is as long as all others in the table.
            for _ in range(missing if next_timestep.last() else 1):
                self._writer.append_observation(self._observation)
        if next_timestep.last():
            while self._window:
                self._write_window()
            self.reset()
            self._written_since_flush = 0
            self.flush()

    def pending(self) -> list[Any]:
        """See `agents.agent.StepAdder`."""
        return self._writer.pending()

    def set_pending(self, steps: list[Any]) -> None:
        """See `agents.agent.StepAdder`."""
        self._writer.set_pending(steps)

    def _write_window(self) -> None:
        first = self._window[0]
        reward, discount = n_step_return(
            [step.reward for step in self._window],
            [step.discount for step in self._window],
            self._discount,
        )
        self._writer.write(
            types.Transition(
                observation=first.observation,
                action=first.action,
                reward=reward,
                discount=discount,
                next_observation=self._observation,
                extras=self._window[self._EXTRAS_OF].extras,
            ),
            steps=len(self._window),
            priority=self._initial_priority,
        )
        self._window.popleft()
        self._written_since_flush += 1
        if self._written_since_flush >= _WRITTEN_PER_FLUSH:
            self._written_since_flush = 0
            self.flush()


class ReturnAdder(NStepTransitionAdder):
    """An adder that stores the discounted rewards of the episode so far with each transition.

    The sum is G_t = r_t + gamma d_{t-1} G_{t-1}, up to the last reward of the transition's return:
    a scale that lacks the rewards which it divides may be 0. It is the transition's extras
    (`SPEC`), whatever extras the actor has, or one of them if the actor has states.
    """

    _EXTRAS_OF = -1
    SPEC = specs.Array((), np.float32, "discounted_rewards")

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode; see `NStepTransitionAdder`."""
        super().add_first(timestep)
        self._sum = self._factor = 0.0

    def add(
        self,
        action: types.NestedArray,
        next_timestep: dm_env.TimeStep,
        extras: types.NestedArray = (),
    ) -> None:
        """Adds an action and the step it led to; see `NStepTransitionAdder`."""
        self._sum = float(next_timestep.reward) + self._factor * self._sum
        self._factor = self._discount * float(next_timestep.discount)
        returns = np.float32(self._sum)
        has_state = isinstance(extras, dict) and STATE in extras
        super().add(action, next_timestep, {**extras, RETURNS: returns} if has_state else returns)
