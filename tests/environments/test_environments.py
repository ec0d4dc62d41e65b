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
from environments.flat import randomness
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


@pytest.mark.parametrize(
    ("action", "real"),
    [
        ([-1, -1], [-0.8, 2]),
        ([1, 1], [1.1, 6]),
        ([0, 0], [0.15, 4]),
        ([0.5, -0.5], [0.625, 3]),
        ([-7, 7], [-0.8, 6]),  # Clipped.
    ],
)
def test_actions_are_scaled_linearly(action, real):
    recorder = Recorder()
    environment = environments.adapt(recorder)
    environment.reset()
    environment.step(np.array(action, np.float32))
    np.testing.assert_allclose(recorder.last, real, rtol=1e-15)
    recorder.action_spec().validate(recorder.last)


def test_unit_actions_pass_unchanged():
    environment = environments.make("reacher:easy", seed=0)
    environment.reset()
    environment.step(np.array([0.3, -0.7], np.float32))
    control = environment.wrapped.physics.control()
    np.testing.assert_array_equal(control, np.array([0.3, -0.7], np.float32).astype(np.float64))


def test_action_of_wrong_shape_is_refused():
    environment = environments.make("reacher:easy", seed=0)
    environment.reset()
    with pytest.raises(
        ValueError, match=r"expected an action array of shape \(2,\), got ndarray of shape \(1,\)"
    ):
        environment.step(np.zeros(1, np.float32))


def test_numbers_are_those_of_dm_control():
    from dm_control import suite

    ours = environments.make("walker:walk", seed=5)
    theirs = suite.load("walker", "walk", task_kwargs={"random": 5})
    timestep, other = ours.reset(), theirs.reset()
    assert list(ours.observation_fields) == ["orientations", "height", "velocity"]
    for index in range(20):
        flattened = np.concatenate(
            [np.ravel(other.observation[k]) for k in ours.observation_fields]
        )
        np.testing.assert_array_equal(timestep.observation, flattened.astype(np.float32))
        assert timestep.reward == (None if index == 0 else np.float32(other.reward))
        action = np.linspace(-1, 1, 6, dtype=np.float32) * np.float32(np.sin(index))
        timestep, other = ours.step(action), theirs.step(action)


def test_a_diverged_simulation_is_told():
    from dm_control.rl.control import PhysicsError

    environment = environments.make("cartpole:balance", seed=0)
    environment.reset()
    environment.wrapped.physics.data.qpos[0] = np.nan
    with pytest.raises(PhysicsError, match="mjWARN_BADQPOS"):
        environment.step(np.zeros(1, np.float32))


def test_time_limit_keeps_discount_one():
    environment = environments.make("pendulum:swingup", seed=0)
    action = np.zeros(1, np.float32)
    timesteps = [environment.reset()]
    while not timesteps[-1].last():
        timesteps.append(environment.step(action))
    assert len(timesteps) == 1001
    assert timesteps[-1].discount == 1
    assert environment.step(action).first()


def test_lqr_gets_limits():
    environment = environments.make("lqr:lqr_2_1", seed=0)
    environment.reset()
    steps = 1
    while not environment.step(np.ones(1, np.float32)).last():
        steps += 1
    assert steps == 1000
    assert environment.wrapped.physics.control() == [1.0]


@pytest.mark.parametrize(
    "name", ["cartpole:swingup", "finger:turn_easy", "lqr:lqr_6_2", f"{FAKE}:make"]
)
def test_seeds(name):
    steps = 12
    one, again, other = (_episode(environments.make(name, seed), steps) for seed in (1, 1, 3))
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


@pytest.mark.parametrize(
    "name", ["cartpole:balance", "point_mass:hard", "environments.fakes:target", f"{FAKE}:make"]
)
@pytest.mark.parametrize(
    "form", [lambda s: json.loads(json.dumps(s)), lambda s: pickle.loads(pickle.dumps(s))]
)
def test_random_state_goes_on(name, form):
    stopped = environments.make(name, seed=4)
    stopped.reset()
    state = form(stopped.random_state)
    expected = [stopped.reset().observation for _ in range(3)]
    resumed = environments.make(name, seed=99)
    resumed.random_state = state
    np.testing.assert_array_equal([resumed.reset().observation for _ in range(3)], expected)


def test_random_state_before_the_first_reset():
    state = environments.make(f"{FAKE}:make", seed=4).random_state
    resumed = environments.make(f"{FAKE}:make", seed=9)
    resumed.random_state = state
    expected = environments.make(f"{FAKE}:make", seed=4).reset().observation
    np.testing.assert_array_equal(resumed.reset().observation, expected)


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


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_every_generator_round_trips(kind):
    random = np.random.Generator(kind(1))
    random.random(3)
    state = json.loads(json.dumps(randomness.snapshot(random)))
    expected = random.random(5)
    fresh = np.random.Generator(kind(2))
    randomness.restore(fresh, state)
    np.testing.assert_array_equal(fresh.random(5), expected)


def test_gaussian_in_hand_is_kept():
    random = np.random.RandomState(1)
    random.randn()  # Draws two, keeps one.
    state = json.loads(json.dumps(randomness.snapshot(random)))
    fresh = np.random.RandomState(2)
    randomness.restore(fresh, state)
    assert fresh.randn() == random.randn()


def test_random_state_of_another_generator_is_refused():
    state = randomness.snapshot(np.random.default_rng(0))
    with pytest.raises(
        ValueError, match="expected the random state of a MT19937 generator, got one of 'PCG64'"
    ):
        environments.make("cartpole:balance", seed=0).random_state = state


def test_random_state_where_there_is_none():
    environment = environments.make("environments.fakes:chain", seed=0)
    assert environment.random_state is None
    environment.random_state = None
    with pytest.raises(ValueError, match="expected no random state for Chain"):
        environment.random_state = {"bit_generator": "PCG64"}


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


def test_target_returns_its_length_to_the_best_policy():
    environment = environments.make("environments.fakes:target", seed=0)
    timestep, total = environment.reset(), 0.0
    while not timestep.last():
        timestep = environment.step(timestep.observation[:1])
        total += timestep.reward
    assert total == pytest.approx(20, abs=1e-4)
    assert timestep.discount == 1


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


def test_gymnasium_gets_the_seed():
    raw = gymnasium_fake.make(4)
    observation, _ = raw.reset(seed=4)
    expected = np.concatenate([[observation["clock"]], observation["noise"].ravel()]).astype(
        np.float32
    )
    np.testing.assert_array_equal(
        environments.make(f"{FAKE}:make", 4).reset().observation, expected
    )


def test_gymnasium_wrappers_work():
    environment = environments.make(f"{FAKE}:make_wrapped", 0)
    environment.reset()
    steps = [environment.step(np.zeros(2, np.float32)) for _ in range(3)]
    assert steps[-1].last() and steps[-1].discount == 1


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
    halved.reward_range = (-1.0, 1.0)
    assert bounds(gymnasium.wrappers.TimeLimit(halved, 2)) == (-1, 1)


def test_gymnasium_pictures_have_the_wanted_size():
    environment = environments.make(f"{FAKE}:make", 0)
    frame = environment.render(4, 8, 0)
    assert frame.shape == (4, 8, 3) and frame.dtype == np.uint8
    np.testing.assert_array_equal(frame[::2, ::2], np.arange(24).reshape(2, 4, 3))
    silent = environments.adapt(gymnasium_fake.Seven(True, render_mode=None))
    with pytest.raises(
        environments.EnvironmentSpecError, match=r"expected .*rgb_array.*, got None"
    ):
        silent.render()


def test_the_transparency_of_pictures_is_left_out():
    environment = environments.make("tests.environments.odd:transparent", seed=0)
    np.testing.assert_array_equal(environment.render(8, 8)[0, 0], [100, 150, 200])


@pytest.mark.parametrize(
    ("frame", "got"),
    [
        (np.full((30, 40, 3), 0.5, np.float32), r"float32 \[30, 40, 3\]"),
        (np.zeros((30, 40), np.uint8), r"uint8 \[30, 40\]"),
        (np.zeros((30, 40, 2), np.uint8), r"uint8 \[30, 40, 2\]"),
        ([np.zeros((30, 40, 3), np.uint8)], r"uint8 \[1, 30, 40, 3\]"),
        (np.zeros((0, 40, 3), np.uint8), r"uint8 \[0, 40, 3\]"),
        (None, "None"),
    ],
)
def test_gymnasium_pictures_of_another_kind_are_refused(frame, got):
    class Drawn(gymnasium_fake.Seven):
        def render(self):
            return frame

    environment = environments.adapt(Drawn(terminates=True))
    expected = (
        rf"Drawn: frame: expected uint8 \[height, width, 3\] from its render\(\), got {got}; conv"
    )
    with pytest.raises(environments.EnvironmentDataError, match=expected):
        environment.render(8, 8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "cartpole:swinup",
            r"got 'cartpole:swinup'; did you mean cartpole:swingup or .* lists the tasks",
        ),
        (
            "cartpole",
            r"expected a task 'domain:task', 'gym:ID', 'dm:manipulation/TASK', "
            r"'dm:locomotion/TASK' or a factory 'package.module:function', got 'cartpole'",
        ),
        ("", "got ''; 'rl-replicator envs' lists the tasks"),
        (
            "nothere:foo",
            "got 'nothere:foo'; no domain and no module 'nothere' was found in the work",
        ),
        (
            "no_such.module:make",
            "no domain and no module 'no_such.module' was found .* 'rl-replicator envs' list",
        ),
        ("environments.fakes:chian", "got 'chian'; did you mean environments.fakes:chain?"),
        (
            f"{FAKE}:make_without_seed",
            r"callable as make_without_seed\(seed=...\), got: got an unexpected",
        ),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(environments.EnvironmentNameError, match=message) as caught:
        environments.make(name, seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "make_discrete",
            r"expected continuous actions with finite bounds \(gymnasium.spaces.Box\), got Disc",
        ),
        (
            "make_partly_discrete",
            r"expected continuous actions with finite bounds \(gymnasium.spaces.Box\), got Disc",
        ),
        (
            "make_last_action_observed",
            r"expected observations of real numbers \(gymnasium.spaces.Box\), got Discrete\(3\)",
        ),
        (
            "make_unbounded",
            r"expected continuous actions with finite bounds, got the range \[-inf, -inf\]",
        ),
        (
            "make_vector",
            r"expected a single environment, got a vector of 3 .*; .*--envs-per-actor",
        ),
        ("make_nothing", "expected a dm_env.Environment or a gymnasium.Env, got builtins.object"),
    ],
)
def test_environments_that_do_not_fit(name, message):
    with pytest.raises(environments.EnvironmentSpecError, match=message) as caught:
        environments.make(f"{FAKE}:{name}", seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_out_of_range(seed):
    with pytest.raises(
        environments.EnvironmentSpecError, match="expected an environment seed from 0"
    ):
        environments.make("cartpole:swingup", seed=seed)


def test_fake_specs_that_do_not_fit():
    class Discrete(Recorder):
        def action_spec(self):
            return specs.DiscreteArray(3)

    class Category(Recorder):
        def observation_spec(self):
            return {"kind": specs.DiscreteArray(5)}

    class Pair(Recorder):
        def reward_spec(self):
            return specs.Array((2,), np.float64)

    with pytest.raises(environments.EnvironmentSpecError, match="got 3 discrete actions"):
        flat.Environment(Discrete())
    with pytest.raises(environments.EnvironmentSpecError, match="one-hot"):
        flat.Environment(Category())
    with pytest.raises(environments.EnvironmentSpecError, match="expected one number as reward"):
        flat.Environment(Pair())


def _fresh_process(code):
    # Another test may have rendered in this process, which sets the variable for child processes.
    environment = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_loads_nothing_heavy():
    code = """
import sys, environments
heavy = ("tensorflow", "dm_control", "mujoco", "OpenGL", "gymnasium")
print([name for name in heavy if name in sys.modules])
"""
    assert _fresh_process(code) == "[]"


def test_models_do_not_complain():
    """MuJoCo calls an attribute of the humanoid's model deprecated, which users cannot change."""
    code = "import environments; environments.make('humanoid:run', seed=0).reset()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_training_from_state_loads_no_gl():
    code = """
import os, sys
import numpy as np
import environments
from environments import engines
engines.check_envpool("cartpole:swingup")  # As the launcher does, which must not load GL either.
for name in ("cartpole:swingup", "quadruped:escape"):
    environment = environments.make(name, seed=0)
    for _ in range(3):
        environment.step(np.zeros(environment.action_spec().shape, np.float32))
libraries = open("/proc/self/maps").read()
print([n for n in ("tensorflow", "OpenGL", "glfw", "gymnasium", "envpool") if n in sys.modules],
      [n for n in ("libGL", "libEGL", "libOSMesa", "libglfw") if n in libraries],
      os.environ.get("MUJOCO_GL"))
"""
    assert _fresh_process(code).splitlines()[-1] == "[] [] None"


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
