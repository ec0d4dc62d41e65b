"""Environments of other libraries by name, wrappers, time limits, and what check-env finds."""

import contextlib
import functools
import io
import json
import re

import gymnasium
import numpy as np
import pytest

import environments
from agents.cli import tasks
from agents.d4pg.config import D4PGConfig
from agents.runs.options import AgentOptions
from environments import examination
from environments.errors import (
    USAGE_ERRORS,
    EnvironmentConstructionError,
    EnvironmentNameError,
    EnvironmentSpecError,
)
from environments.libraries import by_name
from rl_replicator.errors import ConfigError
from tests.environments import gymnasium_fake

FAULTY = "tests.environments.faulty"
FAKE = "tests.environments.gymnasium_fake"


def _play(environment, steps):
    random = np.random.RandomState(0)
    shape = environment.action_spec().shape
    timesteps = [environment.reset()]
    for _ in range(steps):
        action = random.uniform(-1, 1, shape).astype(np.float32)
        timesteps.append(environment.step(action))
    return timesteps


def test_pendulum_of_gymnasium():
    environment = environments.make("gym:Pendulum-v1", seed=3)
    own = gymnasium.make("Pendulum-v1")
    first, _ = own.reset(seed=3)
    timesteps = _play(environment, 200)
    np.testing.assert_allclose(timesteps[0].observation, first, atol=1e-6)
    observation, reward, *_ = own.step(np.float32([2 * (2 * 0.5488135 - 1)]))  # The first action.
    np.testing.assert_allclose(timesteps[1].observation, observation, atol=1e-5)
    np.testing.assert_allclose(timesteps[1].reward, reward, atol=1e-5)
    # Its time limit of 200 steps truncates.
    assert timesteps[-1].last() and timesteps[-1].discount == 1.0
    assert not any(timestep.last() for timestep in timesteps[:-1])
    assert environment.own_action_spec.maximum.tolist() == [2.0]


def test_options_of_an_id_follow_it():
    """The module that registers it comes first."""
    name = 'gym:tests.environments.odd:tests/Named-v0{"length": 6}'
    timesteps = _play(environments.make(name, seed=0), 6)
    assert [timestep.last() for timestep in timesteps] == [False] * 6 + [True]


def test_options_of_an_id_are_part_of_the_task():
    options = AgentOptions(env="gym:Pendulum-v1", env_options='{"g": 9.0}', agent=D4PGConfig())
    assert options.task.name == options.identity["env"] == 'gym:Pendulum-v1{"g": 9.0}'
    with pytest.raises(
        ConfigError, match="expected a JSON object in braces, for an environment gym"
    ):
        AgentOptions(env="cartpole:swingup", env_options='{"g": 9.0}', agent=D4PGConfig())


@pytest.mark.parametrize(
    "name", ["dm:manipulation/reach_site_features", "dm:locomotion/cmu_humanoid_go_to_target"]
)
def test_other_tasks_of_dm_control(name):
    one, other = environments.make(name, seed=4), environments.make(name, seed=4)
    for a, b in zip(_play(one, 3), _play(other, 3), strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
    assert name.partition(":")[2] in by_name.dm_control_names()


@pytest.mark.parametrize(
    ("name", "limit", "length", "discount"),
    [
        ("environments.fakes:chain", 4, 4, 1.0),  # Truncated.
        ("environments.fakes:chain", 10, 10, 0.0),  # It terminates at that step.
        ("environments.fakes:chain", 99, 10, 0.0),
        ("environments.fakes:truncated_chain", 99, 10, 1.0),
        ("tests.environments.gymnasium_fake:make", 5, 5, 1.0),
        ("cartpole:swingup", 6, 6, 1.0),
    ],
)
def test_a_time_limit_truncates(name, limit, length, discount):
    environment = environments.make(name, seed=0, time_limit=limit)
    for _ in range(2):
        timesteps = _play(environment, length)
        assert [timestep.last() for timestep in timesteps] == [False] * length + [True]
        assert timesteps[-1].discount == discount
    assert environment.step(np.zeros(environment.action_spec().shape, np.float32)).first()


def test_the_noise_of_wrappers_follows_from_the_seed_and_can_be_restored():
    def make(seed):
        return environments.make("environments.fakes:target", seed, wrap=[f"{FAULTY}:noisy"] * 2)

    def observed(environment):
        return [timestep.observation for timestep in _play(environment, 3)]

    first, other = make(1), make(2)
    noise = np.subtract(observed(make(1)), observed(_plain_target(1)))
    assert len(np.unique(noise.round(9))) == noise.size
    assert np.all(noise != np.subtract(observed(make(2)), observed(_plain_target(2))))
    np.testing.assert_array_equal(observed(first), observed(make(1)))
    other.random_state = json.loads(json.dumps(first.random_state))
    np.testing.assert_array_equal(observed(first), observed(other))


def _plain_target(seed):
    return environments.make("environments.fakes:target", seed)


def test_velocities_are_hidden_and_nothing_else():
    hide = "environments.wrappers:hide_velocities"
    for name, shown in (
        ("cartpole:swingup", ["position"]),
        ("walker:walk", ["orientations", "height"]),
    ):
        whole, hidden = (environments.make(name, 3, None, wrap) for wrap in ((), (hide,)))
        assert list(hidden.observation_fields) == shown
        assert hidden.reward_spec() == whole.reward_spec()
        parts = np.r_[*[whole.observation_fields[part] for part in shown]]
        pairs = [(whole.reset(), hidden.reset())]
        action = np.full(whole.action_spec().shape, 0.3, np.float32)
        pairs += [(whole.step(action), hidden.step(action)) for _ in range(5)]
        for one, other in pairs:
            np.testing.assert_array_equal(other.observation, one.observation[parts])
            assert (one.reward, one.discount) == (other.reward, other.discount)
    with pytest.raises(
        EnvironmentSpecError, match="expected velocities and other parts .* got obs"
    ):
        environments.make("environments.fakes:target", 0, None, (hide,))


def test_wrappers_change_what_they_change_and_nothing_else():
    name = "tests.environments.gymnasium_fake:make"
    plain = environments.make(name, seed=0)
    wrapped = environments.make(name, seed=0, wrap=[f"{FAULTY}:halved"] * 2, time_limit=3)
    for a, b in zip(_play(plain, 3), _play(wrapped, 3), strict=True):
        np.testing.assert_array_equal(a.observation, b.observation)
    assert b.reward == a.reward / 4 and b.last() and not a.last()
    assert wrapped.random_state == plain.random_state is not None
    assert wrapped.render(2, 4).shape == (2, 4, 3)
    assert wrapped.own_action_spec == plain.own_action_spec
    assert wrapped.observation_fields == plain.observation_fields


@pytest.mark.parametrize(("wrap", "limit"), [(["halved"], None), (["halved"] * 2, 5), ([], 5)])
def test_what_is_wrapped_is_closed_once(wrap, limit):
    """Also by a wrapper without a `close` of its own."""
    wrappers = [f"{FAULTY}:{wrapper}" for wrapper in wrap]
    environment = environments.make("environments.fakes:target", 0, None, wrappers, limit)
    closed = []
    environment.wrapped.close = lambda: closed.append(True)
    environment.close()
    environment.close()
    assert closed == [True]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (f"{FAULTY}:nothing", "to return a dm_env.Environment, got NoneType"),
        (f"{FAULTY}:halvd", f"did you mean {FAULTY}:halved"),
        (f"{FAULTY}.py:halved", "was found .*; name it as in an import, package.module, not by"),
        ("halved", "expected a wrapper 'package.module:function', got 'halved'"),
        ("builtins:dict", "expected the wrapper builtins:dict to return .*: no signature found"),
    ],
)
def test_wrappers_that_are_none(path, message):
    with pytest.raises(environments.EnvironmentUsageError, match=message):
        environments.make("environments.fakes:target", seed=0, wrap=[path])


@functools.cache
def _checked(words):
    """The status of check-env and what it prints; names are of modules beside this one."""
    words = [re.sub("^(faulty|odd|gymnasium_fake):", r"tests.environments.\1:", x) for x in words]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return tasks.check_env(words), out.getvalue()


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        ("faulty:good", 0, r"ok    end: episodes of 5 \(truncation\), 5 \(truncation\) steps"),
        ("faulty:good", 0, "ok    seeding: the seed decides"),
        ("faulty:good", 0, "ok    rendering: frames"),
        ("faulty:drawn_small", 0, r"note  rendering: none, so .*uint8 \[48, 64, 3\].*24, 3\]; s"),
        (
            "faulty:unbounded",
            1,
            "WRONG specs: expected actions in one array with finite bounds, of",
        ),
        ("faulty:nan", 1, "WRONG data: .*expected finite float32 numbers, got nan; clip it"),
        ("faulty:restarts", 1, "WRONG data: .*step type at step 1 .* got FIRST; return a last st"),
        ("faulty:reward", 0, "note  reward bounds: beyond them: 2 to 2; correct reward_spec()"),
        ("faulty:endless --max-steps 300", 1, "WRONG end: no episode ended within 300 steps; end"),
        ("faulty:endless --max-steps 300", 1, "note  reward: 1 at every step"),
        ("faulty:endless --time-limit 7", 0, r"ok    end: episodes of 7 \(truncation\), 7"),
        (f"faulty:endless --time-limit 7 --wrap {FAULTY}:halved", 0, "note .* 0.5 at"),
        ("faulty:crash", 1, "WRONG step: AttributeError: .*no_such.*faulty.py, line [0-9]+.; r"),
        ("faulty:exits", 1, "WRONG step: SystemExit: the simulator has ended .*line [0-9]+.; r"),
        ("faulty:bad_close", 1, "ok    seeding: the seed decides"),
        ("faulty:bad_close", 1, "WRONG close: RuntimeError: was never open .*; raise nothing in"),
        ("faulty:strict", 0, "ok    seeding: the seed decides"),
        ("faulty:unseeded", 0, "note  seeding: two environments with the same seed differ, so"),
        ("faulty:fading", 0, "note  random state: an episode that begins with the same one differ"),
        ("faulty:fading", 0, "note  end: every episode terminated after 5 steps; if that is a ti"),
        ("faulty:fading", 0, "note  discount: 0.5 before the last step; "),
        ("faulty:ends_once --max-steps 9", 1, "WRONG end: episode 2 did not end within 9 steps, b"),
        ("faulty:large", 0, "note  observation: values up to .*; scale them"),
        ("faulty:narrow --time-limit 4", 0, "note  observation bounds: beyond them: 1 of 2 num"),
        ("faulty:narrow --time-limit 4", 0, "Agents can train in it"),
        ("faulty:boom", 1, "WRONG construction: .*:boom to .*RuntimeError: my factory .*, line"),
        ("faulty:boom_later", 1, "WRONG construction: .*RuntimeError: no seed 1 .*; correct it"),
        ("faulty:pictures", 1, r"WRONG specs: .*a uint8 image of shape \([0-9, ]+\); train from "),
        ("faulty:pictures --pixels", 0, "ok    specs: observes frames of 64 x 64 x 3, takes 1 fro"),
        ("faulty:pictures --pixels", 0, r"ok    end: episodes of 3 \(truncation\), 3 \(truncation"),
        ("faulty:pictures --pixels", 0, "ok    observation: [0-9]{2}% of a frame changed"),
        ("faulty:still_pictures --pixels", 0, "note  observation: all frames were the same; choos"),
        ("gymnasium_fake:make_undrawn", 0, "note  rendering: none, so .* got: pygame is not inst"),
        ("gymnasium_fake:make_undrawn --pixels", 1, "WRONG rendering: expected what draws "),
        ("gymnasium_fake:make_windowed", 0, "note  rendering: none, so .*='rgb_array', got None"),
        ("odd:Old", 1, "WRONG data: Old: expected reset.. to take seed= .* one without seed=; c"),
        ("odd:WithoutInfo", 1, "WRONG data: .* to return .observation, info., .* one ndarray; c"),
        ("odd:FourValues", 1, "WRONG data: .* terminated, truncated, info., .*, got 4 values; c"),
        ("odd:SameStart", 0, "note  seeding: the seed decides the first episode, and all later"),
        ("odd:Flawed", 0, "note  random state: not found"),
        ("odd:Flawed", 0, "note  actions: 1 of 2 can only have one value; leave them out"),
        ("odd:Flawed", 0, r"note  reward: \S+ to -?[0-9.]+e\+.., too large to learn fr"),
        ("odd:Flawed", 0, r"note  observation: values up to 1.764e\+09, of which float32 keeps s"),
        ("odd:Flawed", 0, "note  rendering: none, so no films: RuntimeError: no context .*line"),
        ("odd:normalized", 0, "note  normalisation: NormalizeObservation: each actor and"),
    ],
)
def test_check_env_says_what_is_wrong_and_what_to_do(words, status, line):
    found, lines = _checked(tuple(words.split()))
    assert found == status and re.search(f"^{line}", lines, re.MULTILINE), lines


def test_check_env_announces_a_long_play(capsys, monkeypatch):
    monkeypatch.setattr(examination, "PATIENCE_SECS", 0.0)
    tasks.check_env([f"{FAULTY}:good"])
    assert re.search(r"^note  speed: .* steps/s; two .*--max-steps", capsys.readouterr().out, re.M)


def test_check_env_needs_a_time_limit_of_a_step_or_more(capsys):
    with pytest.raises(SystemExit, match="2"):
        tasks.check_env([f"{FAULTY}:good", "--time-limit", "0"])
    assert "--time-limit: expected at least 1, got 0" in capsys.readouterr().err


def test_check_env_of_an_unknown_name():
    with pytest.raises(EnvironmentNameError):
        tasks.check_env([f"{FAULTY}:no_such"])


def test_check_env_knows_no_bounds_of_what_a_wrapper_may_have_changed(capsys):
    assert tasks.check_env([f"{FAULTY}:narrow", "--wrap", f"{FAULTY}:noisy"]) == 0
    assert "observation bounds" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "wrap", "cause", "message"),
    [
        (f"{FAULTY}:boom", (), RuntimeError, "factory .*:boom to .*, got RuntimeError: my factory"),
        (f"{FAULTY}:no_specs", (), AttributeError, "specs of .*:no_specs .*got AttributeError: "),
        (f"{FAKE}:make_spaceless", (), AttributeError, "specs of .*no attribute 'observation_sp"),
        (f"{FAULTY}:good", (f"{FAULTY}:refuses_to_wrap",), KeyError, "wrapper .*got KeyError: 'r"),
        ("broken_module:make", (), ZeroDivisionError, "module broken_module .*, line 2.; correct"),
        (f"{FAULTY}:good", ("broken_module:wrap",), ZeroDivisionError, "module broken_module"),
        ("unparsable_module:make", (), SyntaxError, "unparsable_module.py, line 1.; correct it"),
        ("broken_package.inner:make", (), ZeroDivisionError, "broken_package.inner to be .*line 2"),
        ("poor_package.inner:make", (), ModuleNotFoundError, "No module named 'no_such_library'"),
        ("strict_package.inner:make", (), ValueError, "got ValueError: not here"),
        (f"gym:{FAKE}:tests/Ruined-v0", (), ValueError, "gym:.*Ruined-v0 to .*: no data file"),
    ],
)
def test_what_a_users_code_raises_is_one_line_with_its_cause(
    tmp_path, monkeypatch, name, wrap, cause, message
):
    (tmp_path / "broken_module.py").write_text("\n1 / 0\n")
    (tmp_path / "unparsable_module.py").write_text("def (\n")
    for package, code in {
        "broken_package": "\n1 / 0\n",
        "poor_package": "import no_such_library\n",
        "strict_package": "raise ValueError('not here')\n",
    }.items():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
        (tmp_path / package / "inner.py").write_text("")
    ruined = gymnasium.envs.registration.EnvSpec("tests/Ruined-v0", gymnasium_fake.Ruined)
    monkeypatch.setitem(gymnasium.registry, ruined.id, ruined)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnvironmentConstructionError, match=message) as error:
        environments.make(name, seed=0, wrap=wrap)
    assert "\n" not in str(error.value)
    assert isinstance(error.value.__cause__, cause)
    assert isinstance(error.value, USAGE_ERRORS)  # Status 2.


@pytest.mark.parametrize("wrappers", [["noisy"], ["noisy", "halved", "noisy"]])
def test_a_wrappers_generator_is_not_that_of_the_environment(capsys, wrappers):
    words = ["--wrap", *(f"{FAULTY}:{wrapper}" for wrapper in wrappers)]
    for name, is_known in (("good", True), ("endless", False)):
        assert tasks.check_env([f"{FAULTY}:{name}", *words, "--time-limit", "5"]) == 0
        assert ("note  random state: not found" in capsys.readouterr().out) != is_known
