"""DQN's acting: its exploration, its masks, and whole runs in an environment that enforces them."""

import dataclasses
import re

import numpy as np
import pytest
from acme import specs

import environments
from agents import dqn, load_policy
from agents.agent import ExplorationContext
from agents.cli import policies
from agents.dqn.config import DQNConfig, PixelDQNConfig
from agents.nodes.run_plan import EvaluationSchedule
from agents.policies import exported as exported_policies
from agents.replay.config import FrameReplayConfig, ReplayConfig
from agents.runs.options import AgentOptions, PixelAgentOptions
from environments import PixelConfig
from rl_replicator.cli import main
from tests.agents import fixed_samples

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMAND = dataclasses.replace(dqn.command, name="agents.dqn:command")
BUTTONS = "tests.environments.discrete_fakes:make_buttons"  # It refuses illegal actions.
SEEN = "tests.environments.discrete_fakes:make_seen_buttons"
FRAME = PixelConfig(render="observed")
STREAMS = ("value", "advantage")
SMALL = DQNConfig(
    critic_layers=(16, 16),
    global_batch_size=16,
    steps_per_call=4,
    exploration_epsilon=0.5,
    exploration_exponent=0.0,
    exploration_random_steps=50,
    normalize_observations=True,
    replay=ReplayConfig(min_size=100, samples_per_insert=8.0),
)


def exploration(rank=0.5, step=10_000, **changes):
    spec = specs.make_environment_spec(environments.make(BUTTONS, seed=0))
    context = ExplorationContext(np.random.default_rng(0), lambda: step, rank)
    return COMMAND.make_agent(DQNConfig(**changes), spec).make_exploration(context)


@pytest.mark.parametrize("torso", ["mlp", "simba"])
def test_from_pixels_the_layer_that_streams_share_may_be_the_projection_alone(torso):
    config = PixelDQNConfig(torso=torso, discount=0.9, critic_layers=(8,), feature_size=4)
    spec = fixed_samples.make_spec(
        specs.Array((36, 36, 3), np.uint8), specs.DiscreteArray(3, np.int32)
    )
    policy = COMMAND.make_agent(config, spec).make_acting_networks()["policy"]
    kernels = {v.name: v.shape for v in policy.trainable_variables if v.name.endswith("/w:0")}
    shared = {name for name in kernels if not re.search(f"/({'|'.join(STREAMS)})/", name)}
    assert [kernels[name] for name in shared] == [(64, 4)]
    assert all(kernels[f"policy/{stream}/linear_0/w:0"] == (4, 8) for stream in STREAMS)


@pytest.mark.parametrize(("rank", "epsilon"), [(0.0, 0.4), (0.5, 0.4**4.5), (1.0, 0.4**8)])
def test_a_ladder_of_epsilons(rank, epsilon):
    """Horgan et al. 2018, section 4.1. A random action is the best one in a third of all cases."""
    explore = exploration(rank)
    values = np.array([0.0, 2.0, 1.0, *[-np.inf] * 3], np.float32)
    taken = [int(explore(values)[0]) for _ in range(20_000)]
    share = np.mean(np.array(taken) != 1)
    assert share == pytest.approx(2 / 3 * epsilon, abs=0.01)
    assert set(taken) <= {0, 1, 2}


def test_the_first_actions_are_random_and_legal():
    explore = exploration(step=999)
    values = np.array([-np.inf, 2.0, 1.0, -np.inf, 0.0, -np.inf], np.float32)
    taken = [int(explore(values)[0]) for _ in range(3000)]
    counts = np.bincount(taken, minlength=6)
    assert counts[[0, 3, 5]].sum() == 0
    np.testing.assert_allclose(counts[[1, 2, 4]] / 3000, 1 / 3, atol=0.04)


def options(run_dir, **changes):
    settings = {
        "env": BUTTONS,
        "steps": 300,
        "run_dir": run_dir,
        "agent": SMALL,
        "video": False,
        "evaluation": EvaluationSchedule(every=150, episodes=2, last_episodes=2),
    }
    return AgentOptions(**(settings | changes))


@pytest.mark.timeout(300)
def test_runs_from_training_to_data(tmp_path, monkeypatch):
    """Others learn from the data of a deterministic run; tests/agents/test_memory.py stops one."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    run = tmp_path / "run"
    assert COMMAND.train(options(run, deterministic=True)) == 0
    assert policies.record([str(run), "--episodes", "15", "--dataset", "a-v0", "--explore"]) == 0
    offline = tmp_path / "offline"
    options_offline = {"offline": "a-v0", "env": BUTTONS, "actors": 1, "steps": 40}
    assert COMMAND.train(options(offline, **options_offline)) == 0
    prefilled = tmp_path / "prefilled"
    assert COMMAND.train(options(prefilled, prefill="a-v0", actors=2)) == 0
    policy = load_policy(prefilled)
    with policy.make_environment(seed=5) as environment:
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(policy.act(timestep.observation))
    assert main.main(["report", str(prefilled), "--out", str(tmp_path / "report.html")]) == 0


@pytest.mark.timeout(300)
def test_frames_and_a_mask_from_training_to_an_export(tmp_path):
    """What the image shows is learned; an illegal action would end the run."""
    run, out = tmp_path / "run", tmp_path / "model"
    config = PixelDQNConfig(
        encoder="small",
        feature_size=16,
        critic_layers=(16,),
        max_shift=0,
        frame_stack=1,
        discount=0.0,
        n_step=1,
        value_min=0.0,
        value_max=1.0,
        critic_learning_rate=2e-3,
        global_batch_size=16,
        precision="float32",
        exploration_epsilon=0.5,
        exploration_exponent=0.0,
        exploration_random_steps=50,
        replay=FrameReplayConfig(min_size=100, samples_per_insert=16.0),
    )
    of_state = options(run, agent=SMALL)
    changes = {"env": SEEN, "frame": FRAME, "agent": config, "steps": 800, "action_repeat": 1}
    settings = {f.name: getattr(of_state, f.name) for f in dataclasses.fields(of_state)}
    assert COMMAND.train(PixelAgentOptions(**settings | changes | {"pixels": True})) == 0
    assert main.main(["export", str(run), "--format", "numpy", "--out", str(out)]) == 0
    assert "; state: action_mask |" in (out / "README.md").read_text()
    exported, trained = exported_policies.load(out), load_policy(run)
    with trained.make_environment(seed=5) as environment:
        actor, total = exported.actor(), 0.0
        timestep = environment.reset()
        while not timestep.last():
            action = actor.select_action(timestep.observation)
            assert action == trained.act(timestep.observation)
            timestep = environment.step(action)
            total += timestep.reward
    assert total == 8
