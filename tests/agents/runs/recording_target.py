"""The target of `environments.fakes`, which notes who made it, its seed, and its first actions."""

import threading

from environments.fakes import TargetMatching

MADE: list["RecordingTarget"] = []


class RecordingTarget(TargetMatching):
    def __init__(self, seed):
        super().__init__(seed)
        self.node, self.seed = threading.current_thread().name, seed
        self.actions: list[float] = []
        MADE.append(self)

    def step(self, action):
        if len(self.actions) < 8:
            self.actions.append(float(action[0]))
        return super().step(action)


make = RecordingTarget
