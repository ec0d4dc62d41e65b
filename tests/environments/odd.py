"""Environments of Gymnasium that have one odd habit each, which people have reported."""

import gymnasium
import numpy as np

Box = gymnasium.spaces.Box


class Odd(gymnasium.Env):
    """Terminates after three or four steps; the reward is 1 minus the size of the action."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def __init__(self):
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


class Simulated(Odd):
    """Its innermost object is a simulator, which is no environment."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    @property
    def unwrapped(self):
        return self.random


class SameStart(Odd):
    """Seeds its generator in every reset."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=7 if seed is None else seed)


class Stuck(Odd):
    """Its second action can only be 3."""

    def __init__(self):
        super().__init__()
        self.action_space = Box(np.float32([-2, 3]), np.float32([5, 3]))


class Overpaid(Odd):
    """Has rewards whose squares overflow in float32."""

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, 1e30 * reward, *rest


class Dated(Odd):
    """Observes the time in seconds, which float32 cannot count."""

    def __init__(self):
        super().__init__()
        self.observation_space = Box(0, 2**62, (1,), np.int64)

    def observe(self):
        return np.array([1_764_000_000 + self.time])


class Blind(Odd):
    """Cannot draw."""

    def render(self):
        raise RuntimeError("no context")


class Transparent(Odd):
    """Draws RGBA frames, whose colours are 100, 150 and 200."""

    def render(self):
        return np.broadcast_to(np.uint8([100, 150, 200, 0]), (48, 64, 4))


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


def old(seed):
    return Old()


def simulated(seed):
    return Simulated(seed)


def same_start(seed):
    return SameStart()


def stuck(seed):
    return Stuck()


def overpaid(seed):
    return Overpaid()


def normalized(seed):
    return gymnasium.wrappers.NormalizeObservation(Odd())


def dated(seed):
    return Dated()


def blind(seed):
    return Blind()


def transparent(seed):
    return Transparent()


class Drawing(Odd):
    """Draws with MuJoCo, which it opens in its constructor as its module was imported before."""

    def __init__(self, render_mode=None):
        import mujoco

        super().__init__()
        model = mujoco.MjModel.from_xml_string(
            "<mujoco><worldbody><light pos='0 0 3'/><geom size='.1'/></worldbody></mujoco>"
        )
        self.data = mujoco.MjData(model)
        mujoco.mj_forward(model, self.data)
        self.renderer = mujoco.Renderer(model, 48, 64)

    def render(self):
        self.renderer.update_scene(self.data)
        return self.renderer.render()


gymnasium.register("tests/Drawing-v0", Drawing)


class DrawnLate(Odd):
    """Makes Gymnasium's renderer of MuJoCo with the first frame, under a name of its own."""

    def __init__(self, render_mode=None):
        import mujoco

        super().__init__()
        self.model = mujoco.MjModel.from_xml_string(
            "<mujoco><worldbody><light pos='0 0 3'/><geom size='.1'/></worldbody></mujoco>"
        )
        self.data = mujoco.MjData(self.model)
        mujoco.mj_forward(self.model, self.data)
        self._drawer = None

    def render(self):
        from gymnasium.envs.mujoco.mujoco_rendering import MujocoRenderer

        self._drawer = self._drawer or MujocoRenderer(self.model, self.data, None, 64, 48)
        return self._drawer.render("rgb_array")


gymnasium.register("tests/DrawnLate-v0", DrawnLate)


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
