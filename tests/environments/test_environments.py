"""Scaling, seeding, random state, factories, errors, and what gets imported."""

import gc
import json
import os
import pickle
import subprocess
import sys
import weakref

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs

import environments
from environments import examination, fakes, flat
from environments.pixels.config import PixelConfig
from tests.environments import gymnasium_fake

FAKE = "tests.environments.gymnasium_fake"


def _episode(environment, steps):
    """Observations of `steps` steps with fixed random actions, across the ends of episodes."""
    random = np.random.RandomState(7)
    shape = environment.action_spec().shape
    actions = [random.uniform(-1, 1, shape).astype(np.float32) for _ in range(steps)]
    return np.stack([environment.step(action).observation for action in actions])


class Recorder(dm_env.Environment):
    """Keeps the last action; bounds [-0.8, 1.1] and [2, 6] in float64."""

    last: np.ndarray

    def reset(self):
        return dm_env.restart(np.zeros(1))

    def step(self, action):
        self.last = action
        return dm_env.transition(0.0, np.zeros(1))

    def observation_spec(self):
        return specs.Array((1,), np.float64)

    def action_spec(self):
        return specs.BoundedArray((2,), np.float64, [-0.8, 2.0], [1.1, 6.0])


def test_the_limits_of_each_action_are_named():
    found = next(examination.examine(lambda seed: environments.adapt(Recorder()), max_steps=10))
    assert found.text == "observes 1 number, takes 1 from -0.8 to 1.1, 1 from 2 to 6"


def test_actions_are_clipped_and_scaled_linearly():
    recorder = Recorder()
    environment = environments.adapt(recorder)
    environment.reset()
    for action, real in (
        ([-1, -1], [-0.8, 2]),
        ([1, 1], [1.1, 6]),
        ([0, 0], [0.15, 4]),
        ([0.5, -0.5], [0.625, 3]),
        ([-7, 7], [-0.8, 6]),
    ):
        environment.step(np.array(action, np.float32))
        np.testing.assert_allclose(recorder.last, real, rtol=1e-15)
        recorder.action_spec().validate(recorder.last)
    with pytest.raises(
        ValueError, match=r"expected an action array of shape \(2,\), got ndarray of"
    ):
        environment.step(np.zeros(1, np.float32))


def test_a_diverged_simulation_is_told():
    from dm_control.rl.control import PhysicsError

    environment = environments.make("cartpole:balance", seed=0)
    environment.reset()
    environment.wrapped.physics.data.qpos[0] = np.nan
    with pytest.raises(PhysicsError, match="mjWARN_BADQPOS"):
        environment.step(np.zeros(1, np.float32))


@pytest.mark.parametrize("name", ["pendulum:swingup", "lqr:lqr_2_1"])
def test_time_limits_keep_the_discount_of_one(name):
    """Those of dm_control, and ours of tasks that have none."""
    environment = environments.make(name, seed=0)
    action = np.ones(environment.action_spec().shape, np.float32)
    timesteps = [environment.reset()]
    while not timesteps[-1].last():
        timesteps.append(environment.step(action))
    assert len(timesteps) == 1001
    assert timesteps[-1].discount == 1
    assert environment.wrapped.physics.control() == [1.0]
    assert environment.step(action).first()


@pytest.mark.parametrize(
    "name", ["cartpole:swingup", "finger:turn_easy", "lqr:lqr_6_2", f"{FAKE}:make"]
)
def test_seeds(name):
    steps = 12
    one, again, other = (_episode(environments.make(name, seed), steps) for seed in (1, 1, 3))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


@pytest.mark.parametrize("name", ["cartpole:balance", "environments.fakes:target", f"{FAKE}:make"])
def test_random_state_goes_on(name):
    """Before the first reset and after it; as JSON, or pickled."""
    stopped = environments.make(name, seed=4)
    states = [json.loads(json.dumps(stopped.random_state))]
    expected = [stopped.reset().observation]
    states.append(pickle.loads(pickle.dumps(stopped.random_state)))
    expected += [stopped.reset().observation for _ in range(2)]
    for time, state in enumerate(states):
        resumed = environments.make(name, seed=99)
        resumed.random_state = state
        later = [resumed.reset().observation for _ in range(3 - time)]
        np.testing.assert_array_equal(later, expected[time:])


def test_a_generator_that_is_not_known_repeats_nothing():
    def start(seed, state):
        environment = environments.make(f"{FAKE}:make_own_generator", seed)
        if state is not None:
            environment.random_state = json.loads(json.dumps(state))
        assert environment.random_state == (state or {"seed": seed})
        return environment.reset().observation, environment.random_state

    first, state = start(4, None)
    second, state = start(5, state)
    third, _ = start(6, state)
    beside_it, _ = start(7, state)
    assert len({each.tobytes() for each in (first, second, third, beside_it)}) == 4


def test_gaussian_in_hand_is_kept():
    random = np.random.RandomState(1)
    random.randn()  # Draws two, keeps one.
    state = json.loads(json.dumps(flat.NumpyRandomness(random).get()))
    fresh = np.random.RandomState(2)
    flat.NumpyRandomness(fresh).set(state)
    assert fresh.randn() == random.randn()


def test_a_random_state_that_does_not_fit_is_refused():
    state = flat.NumpyRandomness(np.random.default_rng(0)).get()
    with pytest.raises(ValueError, match="state must be for a MT19937"):
        environments.make("cartpole:balance", seed=0).random_state = state
    environment = environments.make("environments.fakes:chain", seed=0)
    assert environment.random_state is None
    environment.random_state = None
    with pytest.raises(ValueError, match="expected no random state for Chain"):
        environment.random_state = state


def test_chain_is_known_on_paper():
    environment = environments.adapt(fakes.Chain(rewards=(1, 2, 4), terminal_discount=0.5))
    timesteps = [environment.reset()] + [
        environment.step(np.full(1, 0.25, np.float32)) for _ in range(4)
    ]
    assert [step.reward for step in timesteps] == [None, 1, 2, 4, None]
    assert [step.discount for step in timesteps] == [None, 1, 1, 0.5, None]
    np.testing.assert_array_equal(timesteps[3].observation, [1, 0.25])
    assert timesteps[3].last() and timesteps[4].first()
    assert environment.reward_spec() == specs.BoundedArray((), np.float32, 1, 4)


@pytest.mark.parametrize(("seed", "discount"), [(0, 0), (1, 1)])
def test_gymnasium_termination_and_truncation(seed, discount):
    environment = environments.make(f"{FAKE}:make", seed)
    timestep = environment.reset()
    assert timestep.observation.shape == (5,)
    assert environment.observation_fields == {"clock": slice(0, 1), "noise": slice(1, 5)}
    steps = 0
    while not timestep.last():
        timestep = environment.step(np.array([0.5, -1.0], np.float32))
        steps += 1
    assert (steps, timestep.reward, timestep.discount) == (7, 1.5, discount)
    action = environment.wrapped._environment.actions[0]
    assert action.dtype == np.float32
    np.testing.assert_array_equal(action, [1, 0])
    assert environment.step(np.zeros(2, np.float32)).first()


def test_gymnasium_rewards_are_bounded_unless_a_wrapper_may_change_them():
    def bounds(environment):
        spec = environments.adapt(environment).reward_spec()
        return (spec.minimum, spec.maximum) if isinstance(spec, specs.BoundedArray) else None

    class Ranged(gymnasium_fake.Seven):
        reward_range = (-2.0, 2.0)

    class Halved(gymnasium.Wrapper):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, reward / 2, *rest

    limited = gymnasium.wrappers.TimeLimit(Ranged(terminates=True), 3)
    assert bounds(gymnasium.wrappers.OrderEnforcing(limited)) == (-2, 2)
    assert bounds(gymnasium_fake.Seven(terminates=True)) is None
    assert bounds(gymnasium.wrappers.TransformReward(limited, lambda reward: 10 * reward)) is None
    halved = Halved(limited)
    assert bounds(halved) is None
    halved.reward_range = np.array([-1.0, 1.0])
    assert bounds(gymnasium.wrappers.TimeLimit(halved, 2)) == (-1, 1)


def test_gymnasium_pictures_have_the_wanted_size():
    environment = environments.make(f"{FAKE}:make", 0)
    frame = environment.render(4, 8, 0)
    assert frame.shape == (4, 8, 3) and frame.dtype == np.uint8
    assert environment.render(48).shape == (48, 96, 3)  # Its own aspect, as in films.
    assert environments.make("environments.fakes:target", 0).render(48).shape == (48, 64, 3)
    np.testing.assert_array_equal(frame[::2, ::2], np.arange(24).reshape(2, 4, 3))
    silent = environments.adapt(gymnasium_fake.Seven(True, render_mode=None))
    with pytest.raises(
        environments.EnvironmentSpecError, match=r"expected .*rgb_array.*, got None"
    ):
        silent.render()


def drawn(frame):
    """A frame that is rendered, whatever its size, from a picture of Gymnasium."""
    kind = type("Drawn", (gymnasium_fake.Seven,), {"render": lambda self: frame})
    return environments.adapt(kind(terminates=True)).render(30)


def test_pictures_of_several_cameras_stand_side_by_side_and_transparency_is_left_out():
    views = [np.full((30, 40, 3), brightness, np.uint8) for brightness in (10, 20)]
    for pictures in (views, np.stack(views)):
        np.testing.assert_array_equal(drawn(pictures)[0, :, 0], [10] * 40 + [20] * 40)
    transparent = np.broadcast_to(np.uint8([100, 150, 200, 0]), (48, 64, 4))
    np.testing.assert_array_equal(drawn(transparent)[0, 0], [100, 150, 200])


def test_gymnasium_pictures_of_another_kind_are_refused():
    expected = r"Drawn: frame: expected uint8 \[height, width, 3\] from its render\(\), got "
    for frame, got in (
        (np.full((30, 40, 3), 0.5, np.float32), r"float32 \[30, 40, 3\]"),
        (np.zeros((30, 40), np.uint8), r"uint8 \[30, 40\]"),
        (np.zeros((30, 40, 2), np.uint8), r"uint8 \[30, 40, 2\]"),
        ([np.zeros((30, 40), np.uint8)] * 2, r"uint8 \[30, 80\]"),
        (np.zeros((0, 40, 3), np.uint8), r"uint8 \[0, 40, 3\]"),
        (None, "None"),
    ):
        with pytest.raises(environments.EnvironmentDataError, match=f"{expected}{got}; conv"):
            drawn(frame)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cartpole:swinup", "got 'cartpole:swinup'.*; did you mean cartpole:swingup or .* tasks"),
        (
            "cartpole",
            r"^expected a task 'domain:task', 'gym:ID', 'dm:manipulation/TASK', "
            r"'dm:locomotion/TASK' or a factory 'package.module:function', got 'cartpole'",
        ),
        ("", "got ''; 'rl-replicator envs' lists the tasks"),
        ("no_such.module:make", "no module 'no_such' was found in the working directory.* lists"),
        ("./file.py:make", "no module './file.py' was found .*; name it as in an import, package"),
        ("environments/fakes.py:target", "was found .*; name it as in an import, package.module"),
        ("environments.:make", "no module 'environments.' was found"),
        ("environments.fakes:chian", "no function in .*; did you mean environments.fakes:chain?"),
        ("environments.fakes:n", "no function in environments.fakes; 'rl-"),  # Not np.
        ("environments.fakes:A/B-v0", "fakes; did you mean gym:environments.fakes:A/B-v0?"),
        ("environments.fakes:np", "'environments.fakes:np', which is no function; 'rl-"),
        (
            f"{FAKE}:make_without_seed",
            r"of an environment, to be callable with seed=...: got an un",
        ),
        ("builtins:dict", "to be callable with seed=...: no signature found for .*; give it that"),
        ("gym:Pendulum-v1{g: 9}", "as a JSON object, such as .*, got '{g: 9}': Expecting property"),
        ("gym:Pendulm-v1", "got 'Pendulm-v1': .*did you mean gym:Pendulum-v"),
        ("gym:tests.environments.odd:tests/Namd-v0", "did you mean gym:.*odd:tests/Named-v0"),
        ("gym:own/Own-v0", "Namespace own not found.*; gym:MODULE:ID first imports the module th"),
        ("gym:no_such:CartPole-v0", "no module named 'no_such'; install its package, or c.* name$"),
        ("gym:./file.py:Env-v0", "no module named './file.py'; name it as in an import, package"),
        ("gym:Ant-v3", "gym:Ant-v3 cannot be imported: .*moved.*; install what it needs, or"),
        ("dm:manipulation/reach_site", "did you mean dm:manipulation/reach_site_features"),
        ("dm:manipulation/reach_site_vision", "a task without camera observations"),
        ("dm:walker", "expected 'dm:manipulation/TASK'"),
    ],
)
def test_unknown_names_are_one_line(name, message):
    with pytest.raises(environments.EnvironmentNameError, match=message) as caught:
        environments.make(name, seed=0)
    assert "\n" not in str(caught.value)


def changed(**spaces):
    """The fake of Gymnasium with other spaces."""
    environment = gymnasium_fake.Seven(terminates=True)
    vars(environment).update(spaces)
    return environment


def recorder(**specs):
    """The recorder with other specs."""
    environment = Recorder()
    vars(environment).update({name: lambda spec=spec: spec for name, spec in specs.items()})
    return environment


Box, Discrete, Dict = (getattr(gymnasium.spaces, name) for name in ("Box", "Discrete", "Dict"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: changed(action_space=Dict({"turn": Box(0, 1), "jump": Discrete(2)})),
            r"expected actions in one array .*, got Discrete\(2",
        ),
        (
            lambda: changed(observation_space=Dict({"action": Discrete(3)})),
            r"of real numbers \(gymnasium.spaces.Box or MultiBinary\), got Discrete\(3\) as 'a",
        ),
        (
            lambda: changed(action_space=Box(-np.inf, np.inf, (2,))),
            r"of whole numbers, got the range \[-inf, -inf\]",
        ),
        (
            lambda: gymnasium.vector.SyncVectorEnv([lambda: gymnasium_fake.Seven(True)] * 3),
            r"a single environment, got a vector of 3 .*; .*--envs-per-",
        ),
        (object, "a dm_env.Environment or a gymnasium.Env, got builtins.obj"),
        (lambda: recorder(observation_spec={"kind": specs.DiscreteArray(5)}), "one-hot"),
        (
            lambda: recorder(reward_spec=specs.Array((2,), np.float64)),
            "expected one number as reward, .*; a wrapper may weight several",
        ),
        (type("E", (), {"__module__": "gym.core"}), "return shimmy.GymV26"),
        (type("E", (), {"__module__": "pettingzoo.x"}), "a gymnasium.Env of one ag"),
    ],
)
def test_environments_that_do_not_fit(make, message):
    with pytest.raises(environments.EnvironmentSpecError, match=message) as caught:
        environments.adapt(make())
    assert "\n" not in str(caught.value)


def test_an_environment_that_answers_to_every_name():
    class Answering(gymnasium_fake.Seven):
        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)

    environment = environments.adapt(Answering(terminates=True))
    assert environment.reset().first()
    assert environment.step(np.zeros(environment.action_spec().shape, np.float32)).mid()


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range(seed):
    with pytest.raises(environments.EnvironmentSpecError, match="expected an environment seed fr"):
        environments.make("cartpole:swingup", seed=seed)


def test_a_process_that_trains_from_state_loads_little_and_tells_nothing():
    """No OpenGL before a fork, and none of MuJoCo's notes on the cheetah's model."""
    code = """
import os, sys
import environments

def loaded(*names):
    return [name for name in names if name in sys.modules]

assert not loaded("tensorflow", "dm_control", "mujoco", "OpenGL", "gymnasium", "numpy")
environments.make("environments.fakes:chain", 1)
assert not loaded("dm_control.suite")
import numpy as np
from environments import engines
engines.check_envpool("cartpole:swingup")  # As the launcher does, which must not load GL either.
for name in ("cartpole:swingup", "quadruped:escape", "cheetah:run"):
    environment = environments.make(name, seed=0)
    for _ in range(3):
        environment.step(np.zeros(environment.action_spec().shape, np.float32))
assert not loaded("tensorflow", "OpenGL", "glfw", "gymnasium", "envpool")
libraries = open("/proc/self/maps").read()
assert not [n for n in ("libGL", "libEGL", "libOSMesa", "libglfw") if n in libraries]
assert "MUJOCO_GL" not in os.environ
"""
    # Another test may have rendered in this process, which sets the variable for child processes.
    environment = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("pixels", [None, PixelConfig(height=16, width=16)])
def test_an_environment_is_freed_as_soon_as_nobody_holds_it(pixels):
    """It takes megabytes, but these do not make Python collect cycles sooner."""
    environment = environments.make("humanoid:walk", seed=0, pixels=pixels)
    environment.reset()
    environment.step(np.zeros(environment.action_spec().shape, np.float32))
    inner = environment
    while not hasattr(inner, "physics"):
        inner = inner._environment
    physics = weakref.ref(inner.physics)
    gc.collect()  # Garbage from building it.
    gc.disable()
    try:
        environment.close()
        del environment, inner
        assert physics() is None
    finally:
        gc.enable()
