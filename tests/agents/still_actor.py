"""An actor that always takes the same action."""

import numpy as np
from acme import core


class StillActor(core.Actor):
    """Takes the action 0; has nothing beyond the contract."""

    def select_action(self, observation):
        return np.zeros(1, np.float32)

    def observe_first(self, timestep):
        pass

    def observe(self, action, next_timestep):
        pass

    def update(self, wait=False):
        pass
