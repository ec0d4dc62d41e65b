"""The target of `environments.fakes` with actions of twice the range, or numbered ones."""

from dm_env import specs

from environments.fakes import TargetMatching


class WideTarget(TargetMatching):
    """Takes actions in [-2, 2], and matches half of them."""

    def step(self, action):
        return super().step(action / 2)

    def action_spec(self):
        return specs.BoundedArray((1,), float, -2.0, 2.0)


class NumberedTarget(WideTarget):
    """Takes the same actions in whole numbers."""

    def action_spec(self):
        return specs.BoundedArray((1,), int, -2, 2)


make = WideTarget
make_numbered = NumberedTarget
