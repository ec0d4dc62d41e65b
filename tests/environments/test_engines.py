"""Every engine gives an actor dm_control's transitions: none is lost, duplicated or mixed up."""

import itertools

import dm_env
import numpy as np
import pytest

import environments
from agents.environment_loop import explore
from environments import engines
from environments.engines import EnvironmentsInTurn, EnvPoolEnvironments
from environments.errors import EnvironmentUsageError

TASK, LENGTH = "pendulum:swingup", 1000
ENGINES = {
    "dm_control": lambda seeds: EnvironmentsInTurn([environments.make(TASK, s) for s in seeds]),
    "envpool": lambda seeds: EnvPoolEnvironments(TASK, seeds, num_threads=2),
}


class Recorder:
    """Acts at random, and records what it observes.

    Attributes:
      episodes: for each environment, a list of episodes, which are lists of pairs: an action, None
        at first, and the time step after it.
    """

    def __init__(self, size):
        self.episodes = [[] for _ in range(size)]
        self._random = np.random.default_rng(0)

    def begin(self, index, timestep):
        self.episodes[index].append([(None, timestep)])

    def select_actions(self, observations):
        for episodes, observation in zip(self.episodes, observations, strict=True):
            assert observation is episodes[-1][-1][1].observation
        return draw_actions(self._random, len(observations))

    def observe(self, index, action, next_timestep):
        self.episodes[index][-1].append((action, next_timestep))


def draw_actions(random, size):
    """Actions of which some are beyond the limits: environments clip them."""
    return list(random.uniform(-1.5, 1.5, (size, 1)).astype(np.float32))


@pytest.fixture(scope="module")
def pendulum():
    """A function from an observation and an action to the time step of plain dm_control."""
    environment = environments.make(TASK, seed=0)
    physics = environment.wrapped.physics

    def step(observation, action):
        environment.reset()
        with physics.reset_context():
            physics.data.qpos[0] = np.arctan2(observation[1], observation[0])
            physics.data.qvel[0] = observation[2]
        return environment.step(action)

    return step


def assert_equal(timestep, expected):
    np.testing.assert_allclose(timestep.observation, expected.observation, atol=2e-5)
    assert timestep.observation.dtype == np.float32
    assert timestep.reward == expected.reward and timestep.reward.dtype == np.float32


@pytest.mark.parametrize("engine", ENGINES)
def test_an_actor_gets_the_transitions_of_dm_control(engine, pendulum):
    """Whole episodes, ends included: no action is ignored, and no step is lost or duplicated."""
    batch, actor = ENGINES[engine]([3, 2**32 - 1]), Recorder(2)
    for index, timestep in itertools.islice(explore(batch, actor), 2 * (2 * (LENGTH + 1) + 20)):
        assert timestep is actor.episodes[index][-1][-1][1]
    for episodes in actor.episodes:
        assert [len(episode) for episode in episodes] == [LENGTH + 1, LENGTH + 1, 20]
        for episode in episodes:
            actions, timesteps = zip(*episode, strict=True)
            first, *_, last = timesteps
            assert first.first() and first.reward is None and first.discount is None
            assert {timestep.step_type for timestep in timesteps[1:-1]} == {dm_env.StepType.MID}
            assert last.last() == (len(episode) > 20)
            assert {timestep.discount for timestep in timesteps[1:]} == {1.0}  # A time limit.
            for time in [*range(1, 20), *range(len(episode) - 10, len(episode))]:
                before = timesteps[time - 1].observation
                assert_equal(timesteps[time], pendulum(before, actions[time]))


@pytest.mark.parametrize("engine", ENGINES)
def test_environments_may_be_at_different_times(engine, pendulum):
    batch, random = ENGINES[engine]([1, 2, 3]), np.random.default_rng(1)
    timesteps = list(batch.reset(range(3)))
    ends = []
    for time in range(LENGTH + 20):
        actions = draw_actions(random, 3)
        after = list(batch.step(actions))
        for before, action, timestep in zip(timesteps, actions, after, strict=True):
            if time % 50 == 0:
                assert_equal(timestep, pendulum(before.observation, action))
        over = [index for index, timestep in enumerate(after) if timestep.last()]
        ends += [(time, index) for index in over]
        if time == 5:
            over = [0, 2]
        for index, timestep in zip(over, batch.reset(over), strict=True):
            assert timestep.first()
            after[index] = timestep
        timesteps = after
    assert ends == [(LENGTH - 1, 1), (LENGTH + 5, 0), (LENGTH + 5, 2)]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_environment_depends_on_its_own_seed_alone(engine):
    def starts(*seeds):
        batch = ENGINES[engine](seeds)
        episodes = [
            [timestep.observation for timestep in batch.reset(range(len(seeds)))] for _ in range(2)
        ]
        return np.stack(episodes, axis=1)

    together = starts(5, 6, 7)
    np.testing.assert_array_equal(together[1:2], starts(6))
    assert len(np.unique(together.round(4).reshape(6, -1), axis=0)) == 6


def test_every_task_is_in_envpool_or_refused():
    known = engines.envpool().list_all_envs()
    names = environments.names()
    assert {name for name in names if engines.envpool_name(name) not in known} == set()
    assert set(names) > engines.NOT_COMPARED


@pytest.mark.parametrize("name", ["environments.fakes:chain", "gym:Pendulum-v1", "dog:run"])
def test_other_tasks_are_refused(name):
    with pytest.raises(
        EnvironmentUsageError, match="task of the dm_control suite .*, got '" + name
    ):
        EnvPoolEnvironments(name, [1], num_threads=1)
