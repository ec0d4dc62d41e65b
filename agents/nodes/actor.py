"""The actor node: some environments, one exploring policy, as many steps as the counter grants."""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import reverb

import launchpad as lp
from agents.agent import Agent, ExplorationContext, StepAdder, VariableSource
from agents.environment_loop import explore
from agents.nodes.counter import Counter, Episode
from agents.nodes.environment_watch import EnvironmentWatch
from agents.nodes.run_plan import RunPlan
from agents.nodes.timing import StoppedError, TimedActor, Timing, WaitLog

_LOG = logging.getLogger("agents")

_SECONDS_BETWEEN_TIMES = 2.0
# The replay accepts the last rows at the pace of the learner, which may be restarting.
_SECONDS_TO_FINISH = 300.0
_SECONDS_BETWEEN_LOOKS = 1.0
# Shorter waits cannot be due to a starving learner.
_SECONDS_TO_RUN_AHEAD = 5.0
# An actor reports at least this often: a lease of slow steps may take minutes.
_SECONDS_PER_LEASE = 2.0


class ActorNode:
    """Explores until the run has taken all its steps."""

    def __init__(
        self,
        index: int,
        agent: Agent,
        plan: RunPlan,
        replays: Sequence[reverb.Client],
        source: VariableSource,
        counter: Counter,
    ):
        """Makes the environments and the policy, in the node.

        Args:
          index: number of this actor, from 0.
          agent: the agent.
          plan: its task and its seed, from which each environment derives its own seeds.
          replays: clients of the replay servers; each environment writes to one of them.
          source: serves the weights.
          counter: hands out environment steps.
        """
        self._index = index
        self._counter = counter
        self._action_repeat = plan.task.action_repeat
        self._run_steps = counter.progress().environment_steps
        self._runs_ahead = False
        first, count = index * plan.envs_per_actor, plan.num_actors * plan.envs_per_actor
        numbers = range(first, first + plan.envs_per_actor)
        self._streams = [
            _Stream(
                number,
                count,
                (plan.seed, number, *counter.start_environment(number)),
                lambda: self._run_steps,
            )
            for number in numbers
        ]
        self._num_replays = len(replays)
        self._feeds_several = min(len(self._streams), len(replays)) > 1
        with contextlib.ExitStack() as opened:  # Closed by a stop while the learner starts, too.
            watch = opened.enter_context(EnvironmentWatch(f"actor {index}", plan))
            self._environments, self._watched = watch.make_all(
                [stream.environment_seed for stream in self._streams]
            )
            opened.callback(self._environments.close)
            self._adders: list[StepAdder] = []
            for stream in self._streams:
                client = replays[stream.number % len(replays)]
                self._adders.append(agent.make_adder(client, self._is_held_back_in_vain))
                opened.callback(self._adders[-1].close)
            self._timing = Timing()
            contexts = [stream.context for stream in self._streams]
            self._actor = TimedActor(agent.make_actor(source, self._adders, contexts), self._timing)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Acts until the learner is done, this actor is removed, or the program stops.

        When all steps are taken, it waits for the learner: the counter may be restarted from a
        checkpoint with fewer steps, when all other actors may have ended.
        """
        self._stop = lp.stop_event()
        self._wait_log = WaitLog(
            f"actor {self._index}",
            lambda: "the replay to take rows (the learner is behind)",
            self._stop,
        )
        with self._opened, contextlib.suppress(StoppedError):
            self._act()
            self._finish()
            while self._gets_steps_again():
                self._act()
                self._finish()

    def _is_held_back_in_vain(self, waited: float) -> bool:
        """Returns whether to go on although the replay takes no rows: the learner lacks other rows.

        Args:
          waited: seconds waited so far.

        Raises:
          StoppedError: if the program stops.
        """
        self._wait_log.tick(waited)
        if self._num_replays > 1 and (self._runs_ahead or waited > _SECONDS_TO_RUN_AHEAD):
            before = self._runs_ahead
            self._runs_ahead = self._counter.may_run_ahead(self._feeds_several)
            if self._runs_ahead and not before:
                _LOG.warning(
                    "actor %d continues without the replay: it accepts no rows, because the "
                    "learner waits for rows of another replay server; at the end of a run, the "
                    "learner does not train on the last rows",
                    self._index,
                )
        return self._runs_ahead

    def _finish(self) -> None:
        """Lets the learner end once the replay, and thus its last checkpoint, holds all rows."""
        until = time.monotonic() + _SECONDS_TO_FINISH
        finished = [adder.finish(until - time.monotonic()) for adder in self._adders]
        if not all(finished) and not self._runs_ahead:
            _LOG.warning(
                "actor %d: the replay has not confirmed the last rows within %g s; the last "
                "checkpoint may lack them",
                self._index,
                _SECONDS_TO_FINISH,
            )
        self._counter.actor_done(self._index)

    def _gets_steps_again(self) -> bool:
        """Waits for more steps; returns False if the run no longer needs this actor."""
        while not lp.wait_for_stop(_SECONDS_BETWEEN_LOOKS):
            order = self._counter.standby(self._index)
            if order != "wait":
                return order == "act"
        return False

    def _act(self) -> None:
        for stream in self._streams:
            stream.begin_episode()
        granted, done = 0, 0
        episodes: list[Episode] = []
        started, waited = time.monotonic(), self._seconds_waited()
        self._take_times()  # The wait for the other nodes is not timed.
        for index, timestep in explore(self._environments, self._actor):
            stream = self._streams[index]
            if not timestep.first():
                stream.episode_return += float(timestep.reward)
                stream.length += self._action_repeat
                done += self._action_repeat
            if timestep.last():
                episodes.append(stream.end_episode())
            now = time.monotonic()
            is_over = done >= granted or now - started > _SECONDS_PER_LEASE
            if is_over or self._stop.is_set():
                blocked = self._seconds_waited()
                share = (blocked - waited) / max(now - started, 1e-6)
                granted = self._counter.lease(self._index, done, min(share, 1.0), episodes)
                if granted == 0 or self._stop.is_set():
                    return
                done, episodes, started, waited = 0, [], now, blocked
                self._run_steps = self._counter.lease_start(self._index)
                if now >= self._report_at:
                    self._counter.add_time("actor", self._take_times())

    def _seconds_waited(self) -> float:
        return sum(adder.seconds_waited for adder in self._adders)

    def _take_times(self) -> dict[str, float]:
        """Returns the seconds of the actor's parts since the last call."""
        elsewhere = {"environment": sum(each.seconds for each in self._watched)}
        if all(hasattr(each, "seconds_rendering") for each in self._watched):
            elsewhere["render"] = sum(each.seconds_rendering for each in self._watched)
            elsewhere["environment"] -= elsewhere["render"]
        grown = self._timing.take(**elsewhere, wait=self._seconds_waited())
        grown["insert"] -= grown["wait"]
        self._report_at = time.monotonic() + _SECONDS_BETWEEN_TIMES
        return grown


class _Stream:
    """The random generators of one environment of an actor, and its current episode.

    Attributes:
      number: the number of the environment among those of all actors, from 0.
      environment_seed: seed of the environment.
      context: the context of the exploration in it.
      episode_return: sum of the rewards since the start of the episode.
      length: environment steps since then.
    """

    def __init__(
        self,
        number: int,
        count: int,
        entropy: Sequence[int],
        environment_steps: Callable[[], int],
    ):
        """Starts the random streams.

        An actor that is started again, in a continued run or after a failure, gets new streams. The
        interrupted episodes are in the replay: streams that started over would insert the same
        transitions again while actions are random.

        Args:
          number: the number of the environment among those of all actors.
          count: number of the environments of all actors.
          entropy: integers that seeded no earlier stream of the run.
          environment_steps: returns the steps that all actors have taken.
        """
        self.number = number
        seeds = np.random.SeedSequence(entropy).generate_state(2)
        self.environment_seed, noise_seed = map(int, seeds)
        self.context = ExplorationContext(
            np.random.default_rng(noise_seed),
            environment_steps,
            rank=number / (count - 1) if count > 1 else 0.5,
        )
        self.begin_episode()

    def begin_episode(self) -> None:
        """Starts an episode; an unfinished one is not counted."""
        self.episode_return, self.length = 0.0, 0

    def end_episode(self) -> Episode:
        """Returns the episode, and starts the next one."""
        episode = Episode(self.number, self.episode_return, self.length)
        self.begin_episode()
        return episode
