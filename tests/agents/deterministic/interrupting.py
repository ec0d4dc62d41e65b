"""A wrapper for `--wrap` whose environment interrupts its own run."""

import os
import signal
import time
from pathlib import Path

import dm_env

import launchpad as lp

# "SIGNAL STEP RUN_DIR": from this step of the actor in this process on, the signal is sent as soon
# as the run has a checkpoint of a learner that has trained. "SIGNAL eSTEP RUN_DIR" counts the steps
# of the first evaluation instead.
VARIABLE = "TEST_INTERRUPT"


# Environments in the order of their first steps: the actor's, then the evaluations'.
_stepping: list["Interrupting"] = []


class Interrupting(dm_env.Environment):
    """Behaves as the wrapped environment until it sends a signal to its process."""

    def __init__(self, environment):
        self._environment = environment
        self._steps = 0
        name, step, run_dir = os.environ.get(VARIABLE, "SIGINT -1 .").split()
        self._signal, self._run = getattr(signal, name), Path(run_dir)
        self._first, self._stepping = int(step.lstrip("e")), int(step.startswith("e"))

    def step(self, action):
        self._steps += 1
        if self._steps == 1:
            _stepping.append(self)
        if _stepping.index(self) == self._stepping and 0 <= self._first <= self._steps:
            if self._has_checkpoint():
                self._first = -1
                os.kill(os.getpid(), self._signal)
                lp.wait_for_stop(60)  # The evaluation must not end before the main thread notices.
            else:
                time.sleep(0.1)  # On a busy machine, the next checkpoint may take a while.
        return self._environment.step(action)

    def _has_checkpoint(self):
        names = [path.name for path in self._run.glob("checkpoints/0*")]
        return any(int(name.rpartition("_")[2]) > 0 for name in names)

    def __getattr__(self, name):
        return getattr(self._environment, name)

    def reset(self):
        return self._environment.reset()

    def action_spec(self):
        return self._environment.action_spec()

    def observation_spec(self):
        return self._environment.observation_spec()


def wrap(environment):
    return Interrupting(environment)
