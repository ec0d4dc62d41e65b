"""Environments of Gymnasium that have one odd habit each, which people have reported."""

import gymnasium
import numpy as np

Box = gymnasium.spaces.Box


class Odd(gymnasium.Env):
    """Terminates after three or four steps; the reward is 1 minus the size of the action."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self, seed=None):
        self.observation_space = Box(-1, 1, (2,))
        self.action_space = Box(-1, 1, (1,))
        self.random = None

    def observe(self):
        return (self.random or self.np_random).uniform(-1, 1, 2).astype(np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.length = 0, (self.random or self.np_random).integers(3, 5)
        return self.observe(), {}

    def step(self, action):
        self.time += 1
        reward = 1 - float(np.abs(action).mean())
        return self.observe(), reward, self.time >= self.length, False, {}

    def render(self):
        return np.full((48, 64, 3), 100, np.uint8)


class Old(Odd):
    """Has the `reset` of Gym before 0.26."""

    def reset(self):
        return super().reset()[0]


class WithoutInfo(Odd):
    """Takes a seed, but returns the observation alone, whose two numbers are no two values."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


class FourValues(Odd):
    """Has the `step` of Gym before 0.26."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class SameStart(Odd):
    """Seeds its generator in every reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=7 if seed is None else seed)


class Flawed(Odd):
    """A fixed action, huge rewards, a clock in seconds, no frames; and it hides its generator."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)
        self.action_space = Box(np.float32([-2, 3]), np.float32([5, 3]))
        self.observation_space = Box(0, 2**62, (1,), np.int64)

    @property
    def unwrapped(self):
        return self.random  # As of a simulator, which is no environment.

    def observe(self):
        return np.array([1_764_000_000 + self.time])

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 1e30 * reward, *rest

    def render(self):
        raise RuntimeError("no context")


class Named(Odd):
    """Needs an argument."""

    def __init__(self, length, render_mode=None):
        super().__init__()
        self.fixed = length

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed)
        self.length = self.fixed
        return found


gymnasium.register("tests/Named-v0", Named)


def register_toys():
    """What a package of environments names as its entry point."""
    gymnasium.register("toys/Odd-v0", Odd)


def normalized(seed):
    return gymnasium.wrappers.NormalizeObservation(Odd())


class Holding(Odd):
    """Holds an environment that draws with Gymnasium's renderer of MuJoCo."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.held = gymnasium.make("InvertedPendulum-v5", render_mode="rgb_array")

    def reset(self, *, seed=None, options=None):
        self.held.reset(seed=seed)
        return super().reset(seed=seed)

    def render(self):
        return self.held.render()


gymnasium.register("tests/Holding-v0", Holding)


class DrawnAtOnce(Odd):
    """Draws with MuJoCo's own renderer, which its constructor makes."""

    def __init__(self, render_mode=None):
        super().__init__()
        import mujoco

        xml = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"
        model = mujoco.MjModel.from_xml_string(xml)
        self.data, self.renderer = mujoco.MjData(model), mujoco.Renderer(model, 48, 64)
        mujoco.mj_forward(model, self.data)

    def render(self):
        self.renderer.update_scene(self.data)
        return self.renderer.render()


gymnasium.register("tests/DrawnAtOnce-v0", DrawnAtOnce)
