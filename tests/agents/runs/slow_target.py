"""The target of `environments.fakes`, with a step that takes as long as a simulator's."""

import time

from environments.fakes import TargetMatching


class SlowTarget(TargetMatching):
    """Leaves the processors to other tests while a program trains until it is stopped."""

    def step(self, action):
        time.sleep(0.002)
        return super().step(action)


make = SlowTarget
