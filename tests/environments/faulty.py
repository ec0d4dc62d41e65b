"""Factories of environments and wrappers, most of which have one fault each."""

import itertools
import os
import sys
import tempfile
import time

import dm_env
import numpy as np
from dm_env import specs

from environments.fakes import Chain, TargetMatching


class _Changed(TargetMatching):
    """`TargetMatching` with something changed."""

    def __init__(self, seed, **changes):
        super().__init__(seed, length=5)
        self._changes = changes

    def step(self, action):
        timestep = super().step(action)
        if timestep.first():
            return timestep
        return self._changes.get("step", lambda t: t)(timestep)

    def action_spec(self):
        return self._changes.get("action_spec", super().action_spec())


def good(seed):
    return _Changed(seed)


class _Pictures(_Changed):
    """Observes a picture alone, so that agents can only learn from rendered frames."""

    def _observe(self):
        super()._observe()
        return self.render(8, 8, 0)

    def observation_spec(self):
        return specs.Array((8, 8, 3), np.uint8, name="picture")


def pictures(seed):
    return _Pictures(seed)


def still_pictures(seed):
    environment = _Pictures(seed)
    environment.render = lambda height, width, camera_id: np.zeros((height, width, 3), np.uint8)
    return environment


def drawn_small(seed):
    """Renders frames of a fixed size."""
    environment = good(seed)
    environment.render = lambda height, width, camera_id: np.zeros((24, 24, 3), np.uint8)
    return environment


def drawn_grey(seed):
    environment = good(seed)
    environment.render = lambda height, width, camera_id: np.zeros((height, width))
    return environment


def unbounded(seed):
    return _Changed(seed, action_spec=specs.Array((1,), np.float32))


def no_specs(seed):
    environment = good(seed)
    environment.observation_spec = lambda: environment.no_such_attribute
    return environment


def nan(seed):
    return _Changed(seed, step=lambda t: t._replace(observation=t.observation * np.nan))


def restarts(seed):
    """Each step begins a new episode."""
    return _Changed(seed, step=lambda t: dm_env.restart(t.observation))


def reward(seed):
    return _Changed(seed, step=lambda t: t._replace(reward=2.0))


def endless(seed):
    return Chain((1.0,) * 100_000)


def ends_once(seed):
    """Keeps counting steps after a reset, so that only the first episode ends."""
    steps, kinds = itertools.count(1), {5: dm_env.StepType.LAST}
    environment = _Changed(
        seed, step=lambda t: t._replace(step_type=kinds.get(next(steps), dm_env.StepType.MID))
    )
    environment._length = 10_000
    return environment


def fading(seed):
    """Not wrong: fewer rewards with each step of all episodes, half a discount, a termination."""
    steps = itertools.count(1)

    def step(timestep):
        discount = 0.0 if timestep.last() else 0.5
        return timestep._replace(reward=timestep.reward / next(steps), discount=discount)

    return _Changed(seed, step=step)


def crash(seed):
    return _Changed(seed, step=lambda t: t.no_such_attribute)


def exits(seed):
    return _Changed(seed, step=lambda t: sys.exit("the simulator has ended"))


def bad_close(seed):
    environment = good(seed)

    def close():
        raise RuntimeError("was never open")

    environment.close = close
    return environment


def elsewhere(seed):
    os.chdir(tempfile.gettempdir())
    return good(seed)


def hang(seed):
    """Hangs in the third step of its second episode."""
    steps = itertools.count(1)
    return _Changed(seed, step=lambda t: t if next(steps) < 8 else time.sleep(1000))


def unseeded(seed):
    return _Changed(np.random.randint(2**31))


def halving(seed):
    """Not wrong: each step halves the value of all later ones, as if half of the episodes ended."""
    return _Changed(seed, step=lambda t: t._replace(discount=0.5))


class _Strict(_Changed):
    """Not wrong: it must be reset after the end, as agents do."""

    def step(self, action):
        if self._time == self._length:
            raise RuntimeError("reset me first")
        return super().step(action)


def strict(seed):
    return _Strict(seed)


def large(seed):
    return _Changed(seed, step=lambda t: t._replace(observation=t.observation * 1e4))


class _Narrow(_Changed):
    """Declares integers from 0 to 1, and observes a target from -1 to 1."""

    def observation_spec(self):
        return specs.BoundedArray((2,), np.int32, 0, 1, name="observation")


def narrow(seed):
    return _Narrow(seed)


def boom(seed):
    raise RuntimeError("my factory\nfails")


def boom_later(seed):
    """Fails for every seed but 0."""
    if seed:
        raise RuntimeError(f"no seed {seed}")
    return good(seed)


def refuses_to_wrap(inner):
    return {}["reward"]


class _Halved(dm_env.Environment):
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


def halved(inner):
    return _Halved(inner)


class _Inverted(_Halved):
    """A wrapper that inverts the frames."""

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def render(self, height, width, camera_id=0):
        return 255 - self._inner.render(height, width, camera_id)


def inverted(inner):
    return _Inverted(inner)


class _InvertedPhysics(_Halved):
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


class _DrawnByMujoco(_InvertedPhysics):
    """Draws with MuJoCo's own renderer."""

    def render(self, height, width, camera_id=0):
        import mujoco

        with mujoco.Renderer(self.physics.model.ptr, height, width) as renderer:
            renderer.update_scene(self.physics.data.ptr, camera_id)
            return 255 - renderer.render()


def drawn_by_mujoco(inner):
    return _DrawnByMujoco(inner, inner.wrapped.physics)


class _Drawing(_Halved):
    """A wrapper that draws frames for an environment that cannot."""

    def render(self, height, width, camera_id=0):
        return np.full([height, width, 3], 128, np.uint8)


def drawing(inner):
    return _Drawing(inner)


class _Shown(_Halved):
    """A wrapper whose render shows the environment to people."""

    def render(self, mode="human"):
        raise AssertionError(mode)


def shown(inner):
    return _Shown(inner)


class _PassingOn(_Halved):
    """A wrapper that passes on all other attributes of the wrapped environment."""

    def __getattr__(self, name):
        return getattr(self._inner, name)


def passing_on(inner):
    return _PassingOn(inner)


class _Noisy(_Halved):
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


def noisy(inner, seed):
    return _Noisy(inner, seed)


def nothing(inner):
    del inner
