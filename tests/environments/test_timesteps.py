"""What an environment returns is checked once per step."""

import re

import dm_env
import numpy as np
import pytest
from dm_env import specs

import environments
from environments import EnvironmentDataError


class Faulty(dm_env.Environment):
    """Returns `faults`, by name, from step 3 of the episode on, in place of good values."""

    def __init__(self, reward_spec=None, **faults):
        self._faults = faults
        self._reward_spec = reward_spec or specs.BoundedArray((), float, 0.0, 1.0)
        self._time = 0

    def _observation(self):
        good = {"position": np.zeros((2, 2)), "speed": 0.5}
        return good if self._time < 3 else self._faults.get("observation", good)

    def reset(self):
        self._time = 0
        return dm_env.restart(self._observation())

    def step(self, action):
        self._time += 1
        fault = self._faults if self._time >= 3 else {}
        return dm_env.TimeStep(
            fault.get("step_type", dm_env.StepType.MID),
            fault.get("reward", 0.25),
            fault.get("discount", 1.0),
            self._observation(),
        )

    def observation_spec(self):
        return {"position": specs.Array((2, 2), float), "speed": specs.Array((), float)}

    def reward_spec(self):
        return self._reward_spec

    def action_spec(self):
        return specs.BoundedArray((1,), float, -1.0, 1.0)


def faulty(seed: int) -> Faulty:
    """A factory for `--env`, whose third reward is NaN."""
    return Faulty(reward=np.nan)


def _third_step(name="module:function", **arguments):
    environment = environments.adapt(Faulty(**arguments), name=name)
    environment.reset()
    action = np.zeros(1, np.float32)
    environment.step(action)
    environment.step(action)
    return environment.step(action)


def _position(value):
    return {"observation": {"position": value, "speed": 0.5}}


RETURN = r"return it as in observation_spec\(\)"


@pytest.mark.parametrize(
    ("arguments", "field", "rest"),
    [
        ({"step_type": 1}, "step type", r"a dm_env.StepType, got 1; return dm_env.transition\("),
        ({"step_type": "last"}, "step type", "a dm_env.StepType, got 'last'; return"),
        ({"reward": np.nan}, "reward", "a finite float32 number, got nan; clip it"),
        ({"reward": -np.inf}, "reward", "a finite float32 number, got -inf; clip it"),
        ({"reward": 1e39}, "reward", r"a finite float32 number, got 1e\+39; clip it"),
        ({"reward": None}, "reward", "a number, got None; return one number at every step"),
        ({"reward": np.ones(2)}, "reward", r"a number, got array\(\[1., 1.\]\); return one"),
        ({"discount": 1.5}, "discount", "a number from 0 to 1, got 1.5; return 0 at a term"),
        ({"discount": None}, "discount", "a number, got None; return one number"),
        (_position(np.array([[0, 1], [np.nan, 2]])), "observation 'position'", "finite .* got nan"),
        ({"observation": {"position": np.eye(2), "speed": np.inf}}, "observation 'speed'", ""),
        # It would be broadcast.
        (_position(np.zeros((2, 1))), "observation 'position'", f"numbers of .* got .*; {RETURN}"),
        (_position(None), "observation 'position'", "numbers of .* got None; ret"),
        (_position("left"), "observation 'position'", "numbers of .* got 'left'; return"),
        ({"observation": None}, "observation 'position'", "an array, got none; return"),
        ({"observation": {}}, "observation 'position'", "an array, got none; return"),
    ],
)
def test_a_fault_is_named(arguments, field, rest):
    """With the step, which is counted within the episode."""
    made = environments.adapt(Faulty(**arguments), name="module:function")
    action = np.zeros(1, np.float32)
    for step in (1, 2):
        made.reset()
        for _ in range(step):
            made.step(action)
    start = f"^module:function: {field} at step 3 of the episode: expected "
    with pytest.raises(EnvironmentDataError, match=start + rest) as caught:
        made.step(action)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, environments.EnvironmentUsageError)


@pytest.mark.parametrize(
    ("spec", "reward", "is_told"),
    [
        (specs.BoundedArray((), np.float32, 0.0, 0.5), 0.50009, False),
        (specs.BoundedArray((), np.float32, 0.0, 0.5), 0.6, True),
        (specs.BoundedArray((), np.float32, -1000.0, 50.0), -1000.09, False),
        (specs.BoundedArray((), np.float32, -1000.0, 50.0), -1000.2, True),
        (specs.BoundedArray((), np.float32, -np.inf, 1.0), -1e30, False),
        (specs.Array((), np.float32), -1e30, False),
    ],
)
def test_a_reward_beyond_its_bounds_is_told_once(caplog, spec, reward, is_told):
    """By more than a ten-thousandth of it, or of 1 if that is more. TD3 and SAC need no bounds."""
    name = f"module:pays_{reward}"
    for _ in range(2):
        assert _third_step(name, reward=reward, reward_spec=spec).reward == np.float32(reward)
    expected = [f"{name}: a reward of {reward:.7g} is beyond the declared bounds; correct"]
    found = [text.partition(" reward_spec()")[0] for text in caplog.messages]
    assert found == (expected if is_told else [])


def test_an_episode_that_begins_before_the_last_one_ends():
    made = Faulty()
    environment = environments.adapt(made, name="module:function")
    action = np.zeros(1, np.float32)
    environment.reset()
    environment.step(action)
    environment.reset()  # The episode need not have ended.
    environment.step(action)
    made.step = lambda action: made.reset()
    message = (
        "^module:function: step type at step 2 of the episode: expected MID or LAST, got FIRST; "
        "return a last step before a new episode begins$"
    )
    with pytest.raises(EnvironmentDataError, match=message):
        environment.step(action)


def test_a_reset_that_is_no_first_step():
    made = Faulty()
    made.reset = lambda: made.step(None)
    message = (
        "module:function: step type at step 0 of the episode: expected FIRST from reset(), got "
        "<StepType.MID: 1>; return dm_env.restart(...)"
    )
    with pytest.raises(EnvironmentDataError, match=re.escape(message)):
        environments.adapt(made, name="module:function").reset()


def test_an_action_that_is_no_number_is_not_a_fault_of_the_environment():
    """The observation after it would be NaN as well."""
    environment = environments.adapt(Faulty(), name="module:function")
    environment.reset()
    environment.step(np.full(1, np.inf, np.float32))  # Clipped.
    message = r"^module:function: expected finite actions, got \[nan\]; the policy that .* diverged"
    with pytest.raises(environments.EnvironmentActionError, match=message):
        environment.step(np.full(1, np.nan, np.float32))


def test_what_is_no_fault_passes():
    """Lists, huge finite numbers, a reward that rounding moved, and rewards without bounds."""
    timestep = _third_step(
        observation={"position": [[1, 2], [3, 3e38]], "speed": 2}, reward=1.00001
    )
    np.testing.assert_array_equal(timestep.observation, np.array([1, 2, 3, 3e38, 2], np.float32))
    assert timestep.reward == np.float32(1.00001)


class Filmed(Faulty):
    """Observes its speed and a picture."""

    def observation_spec(self):
        return {"speed": specs.Array((), float), "camera": specs.Array((8, 8, 3), np.uint8)}

    def render(self, height, width, camera_id):
        return np.full((height, width, 3), self._time, np.uint8)


class Filming(Filmed):
    """Observes a picture alone."""

    def observation_spec(self):
        return specs.Array((8, 8, 3), np.uint8)


def filmed(seed: int) -> Filmed:
    return Filmed()


def filming(seed: int) -> Filming:
    return Filming()


@pytest.mark.parametrize(("name", "size"), [("filmed", 1), ("filming", 0)])
@pytest.mark.parametrize(
    "around", [{}, {"time_limit": 5, "wrap": ["tests.environments.faulty:halved"]}]
)
def test_an_image_is_left_out_where_frames_are_observed(name, size, around):
    """Also with wrappers, which get the remaining observations."""
    pixels = environments.PixelConfig(8, 8)
    environment = environments.make(f"{__name__}:{name}", 0, pixels, action_repeat=2, **around)
    environment.reset()
    timestep = environment.step(np.zeros(1, np.float32))
    np.testing.assert_array_equal(timestep.observation, np.full((8, 8, 3), 2, np.uint8))
    assert timestep.reward == (0.25 if around else 0.5)
    assert environment.wrapped.observation_spec().shape == (size,)
    with pytest.raises(environments.EnvironmentSpecError, match="train from frames with --pixels"):
        environments.make(f"{__name__}:{name}", 0, **around)


def test_a_frame_is_not_cast():
    class Drawn(Faulty):
        def render(self, height, width, camera_id):
            return np.zeros((height, width, 3))  # Floats in [0, 1] would all become 0.

    environment = environments.PixelEnvironment(
        environments.adapt(Drawn()), environments.PixelConfig(8, 8)
    )
    expected = (
        r"Drawn: frame: expected uint8 \[8, 8, 3\] from its render\(\), got float64 \[8, 8, 3\];"
    )
    with pytest.raises(EnvironmentDataError, match=expected):
        environment.reset()
