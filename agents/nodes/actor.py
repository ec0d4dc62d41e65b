"""The actor node: one environment, one exploring policy, as many steps as the counter grants."""

import time
from typing import Any

import numpy as np
import reverb

import launchpad as lp
from agents.agent import Agent, VariableSource
from agents.environment_loop import interact
from agents.nodes.counter import Counter, Episode
from agents.nodes.waiting import StoppedError, Waiting
from agents.plan.run_plan import RunPlan


class ActorNode:
    """Explores until the run has taken all its steps."""

    def __init__(
        self,
        index: int,
        agent: Agent,
        plan: RunPlan,
        replay: reverb.Client,
        source: VariableSource,
        counter: Counter,
    ):
        """Makes the environment and the policy, in the node.

        Args:
          index: number of this actor, from 0.
          agent: the agent.
          plan: its task and its seed, from which each actor derives its own seeds.
          replay: client of the replay server.
          source: serves the weights.
          counter: hands out environment steps.
        """
        self._index = index
        self._counter = counter
        environment_seed, noise_seed = np.random.SeedSequence([plan.seed, index]).generate_state(2)
        self._environment = plan.task.make(seed=int(environment_seed))
        self._action_repeat = plan.task.action_repeat
        self._run_steps = counter.progress().environment_steps
        self._noise = np.random.default_rng(int(noise_seed))
        self._set_random_state(counter.random_state(index))
        waiting = Waiting(
            f"actor {index}", lambda: "the replay to take rows (the learner is behind)"
        )
        self._adder = agent.make_adder(replay, waiting.tick)
        self._actor = agent.make_actor(source, self._adder, self._noise, lambda: self._run_steps)

    def run(self) -> None:
        """Acts until all environment steps are taken or the program stops.

        It waits for all nodes first, so that none starts behind the rate limiter.
        """
        if not lp.wait_until_ready():
            return
        try:
            self._act()
            self._adder.finish()
        except StoppedError:
            pass
        finally:
            self._adder.close()

    def _act(self) -> None:
        granted, done, episodes = 0, 0, []
        episode_return, length = 0.0, 0
        started, waited = time.monotonic(), 0.0
        for timestep in interact(self._environment, self._actor):
            if not timestep.first():
                episode_return += float(timestep.reward)
                length += self._action_repeat
                done += self._action_repeat
            if timestep.last():
                episodes.append(Episode(episode_return, length, self._random_state()))
                episode_return, length = 0.0, 0
            if done >= granted:
                now, blocked = time.monotonic(), self._adder.seconds_waited
                share = (blocked - waited) / max(now - started, 1e-6)
                granted = self._counter.lease(self._index, done, min(share, 1.0), episodes)
                if granted == 0 or lp.stop_event().is_set():
                    return
                done, episodes, started, waited = 0, [], now, blocked
                self._run_steps = self._counter.environment_steps()

    def _random_state(self) -> dict[str, Any]:
        return {
            "environment": self._environment.random_state,
            "noise": self._noise.bit_generator.state,
        }

    def _set_random_state(self, state: dict[str, Any] | None) -> None:
        if state is not None:
            self._noise.bit_generator.state = state["noise"]
            if state["environment"] is not None:
                self._environment.random_state = state["environment"]
