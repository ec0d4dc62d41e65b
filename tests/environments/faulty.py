"""Factories of environments and wrappers, most of which have one fault each."""

import functools
import itertools
import os
import sys
import tempfile
import time

import dm_env
import numpy as np
from dm_env import specs

from environments.fakes import Chain, TargetMatching


def _fail(error):
    raise error


class good(TargetMatching):  # noqa: N801 - a factory.
    """`TargetMatching` with something changed: its later time steps, or methods."""

    def __init__(self, seed, changed=lambda timestep: timestep, **methods):
        super().__init__(seed, length=5)
        self._changed = changed
        vars(self).update(methods)

    def step(self, action):
        timestep = super().step(action)
        return timestep if timestep.first() else self._changed(timestep)


def _with(**fields):
    """A factory whose time steps have other fields, functions of the time step."""
    return functools.partial(
        good, changed=lambda t: t._replace(**{name: make(t) for name, make in fields.items()})
    )


class pictures(good):  # noqa: N801
    """Observes a picture alone, so that agents can only learn from rendered frames."""

    def _observe(self):
        super()._observe()
        return self.render(8, 8, 0)

    def observation_spec(self):
        return specs.Array((8, 8, 3), np.uint8, name="picture")


still_pictures = functools.partial(
    pictures, render=lambda height, width, camera_id: np.zeros((height, width, 3), np.uint8)
)
# Renders frames of a fixed size.
drawn_small = functools.partial(
    good, render=lambda height, width, camera_id: np.zeros((24, 24, 3), np.uint8)
)
unbounded = functools.partial(good, action_spec=lambda: specs.Array((1,), np.float32))
no_specs = functools.partial(good, observation_spec=lambda: good.no_such_attribute)
bad_close = functools.partial(good, close=lambda: _fail(RuntimeError("was never open")))
nan = _with(observation=lambda t: t.observation * np.nan)
large = _with(observation=lambda t: t.observation * 1e4)
reward = _with(reward=lambda t: 2.0)
# Not wrong: each step halves the value of all later ones, as if half of the episodes ended.
halving = _with(discount=lambda t: 0.5)
restarts = functools.partial(good, changed=lambda t: dm_env.restart(t.observation))
crash = functools.partial(good, changed=lambda t: t.no_such_attribute)
exits = functools.partial(good, changed=lambda t: sys.exit("the simulator has ended"))


def endless(seed):
    return Chain((1.0,) * 100_000)


def ends_once(seed):
    """Keeps counting steps after a reset, so that only the first episode ends."""
    steps, kinds = itertools.count(1), {5: dm_env.StepType.LAST}
    environment = _with(step_type=lambda t: kinds.get(next(steps), dm_env.StepType.MID))(seed)
    environment._length = 10_000
    return environment


def fading(seed):
    """Not wrong: fewer rewards with each step of all episodes, half a discount, a termination."""
    steps = itertools.count(1)
    return _with(
        reward=lambda t: t.reward / next(steps), discount=lambda t: 0.0 if t.last() else 0.5
    )(seed)


def elsewhere(seed):
    os.chdir(tempfile.gettempdir())
    return good(seed)


def hang(seed):
    """Hangs in the third step of its second episode."""
    steps = itertools.count(1)
    return good(seed, lambda t: t if next(steps) < 8 else time.sleep(1000))


def unseeded(seed):
    return good(np.random.randint(2**31))


class strict(good):  # noqa: N801
    """Not wrong: it must be reset after the end, as agents do."""

    def step(self, action):
        if self._time == self._length:
            raise RuntimeError("reset me first")
        return super().step(action)


# Declares integers from 0 to 1, and observes a target from -1 to 1.
narrow = functools.partial(
    good, observation_spec=lambda: specs.BoundedArray((2,), np.int32, 0, 1, name="observation")
)


def boom(seed):
    raise RuntimeError("my factory\nfails")


def boom_later(seed):
    """Fails for every seed but 0."""
    return _fail(RuntimeError(f"no seed {seed}")) if seed else good(seed)


def refuses_to_wrap(inner):
    return {}["reward"]


class halved(dm_env.Environment):  # noqa: N801
    """A wrapper that halves rewards."""

    def __init__(self, inner):
        self._inner = inner

    def reset(self):
        return self._inner.reset()

    def step(self, action):
        timestep = self._inner.step(action)
        return timestep if timestep.first() else timestep._replace(reward=timestep.reward / 2)

    def observation_spec(self):
        return self._inner.observation_spec()

    def action_spec(self):
        return self._inner.action_spec()


class passing_on(halved):  # noqa: N801
    """A wrapper that passes on all other attributes of the wrapped environment."""

    def __getattr__(self, name):
        return getattr(self._inner, name)


class inverted(passing_on):  # noqa: N801
    """A wrapper that inverts the frames."""

    def render(self, height, width, camera_id=0):
        return 255 - self._inner.render(height, width, camera_id)


class _InvertedPhysics(halved):
    """An environment of dm_control that draws its own frames."""

    def __init__(self, inner, physics):
        super().__init__(inner)
        self.physics = physics

    def render(self, height, width, camera_id=0):
        return 255 - self.physics.render(height, width, camera_id)


def inverted_physics(seed):
    from dm_control import suite

    inner = suite.load("cartpole", "swingup", {"random": seed})
    return _InvertedPhysics(inner, inner.physics)


def inverted_within(inner):
    """A wrapper that draws the wrapped environment with dm_control."""
    return _InvertedPhysics(inner, inner.wrapped.physics)


class drawing(halved):  # noqa: N801
    """A wrapper that draws frames for an environment that cannot."""

    def render(self, height, width, camera_id=0):
        return np.full([height, width, 3], 128, np.uint8)


class shown(halved):  # noqa: N801
    """A wrapper whose render shows the environment to people."""

    def render(self, mode="human"):
        raise AssertionError(mode)


class noisy(halved):  # noqa: N801
    """A wrapper that adds noise to observations."""

    def __init__(self, inner, seed):
        super().__init__(inner)
        self._random = np.random.default_rng(seed)

    def reset(self):
        return self._with_noise(super().reset())

    def step(self, action):
        return self._with_noise(super().step(action))

    def _with_noise(self, timestep):
        noise = self._random.standard_normal(timestep.observation.shape)
        return timestep._replace(observation=timestep.observation + noise)


def nothing(inner):
    del inner
