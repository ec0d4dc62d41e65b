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
from agents.policies import exported as exported_policies
from agents.replay.config import FrameReplayConfig, ReplayConfig
from agents.runs.options import PixelAgentOptions
from environments import PixelConfig
from rl_replicator.cli import main
from tests.agents import fixed_samples
from tests.agents.button_runs import BUTTONS, options

pytestmark = pytest.mark.usefixtures("plain_graphs")
# By import path, which needs no registration.
COMMAND = dataclasses.replace(dqn.command, name="agents.dqn:command")
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


VALUES = np.array([-np.inf, 2.0, 1.0, -np.inf, 0.0, -np.inf], np.float32)


@pytest.mark.parametrize(
    ("rank", "step", "epsilon"),
    [(0.0, 10_000, 0.4), (0.5, 10_000, 0.4**4.5), (1.0, 10_000, 0.4**8), (0.5, 999, 1.0)],
)
def test_a_ladder_of_epsilons_and_random_actions_at_first(rank, step, epsilon):
    """Horgan et al. 2018, section 4.1. A random action is the best one in a third of all cases."""
    explore, count = exploration(rank, step), 10_000
    shares = np.bincount([int(explore(VALUES)[0]) for _ in range(count)], minlength=6) / count
    expected = epsilon / 3 * (-np.inf < VALUES) + (1 - epsilon) * (VALUES == 2)
    np.testing.assert_allclose(shares, expected, atol=0.02)
    assert (shares[-np.inf == VALUES] == 0).all()


@pytest.mark.timeout(300)
def test_runs_from_training_to_data(tmp_path, monkeypatch):
    """Others learn from the data of a deterministic run; tests/agents/test_memory.py stops one."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    run, offline = tmp_path / "run", tmp_path / "offline"
    assert COMMAND.train(options(run, SMALL, deterministic=True)) == 0
    assert policies.record([str(run), "--episodes", "15", "--dataset", "a-v0", "--explore"]) == 0
    assert COMMAND.train(options(offline, SMALL, offline="a-v0", actors=1, steps=40)) == 0
    policy = load_policy(offline)
    with policy.make_environment(seed=5) as environment:
        timestep = environment.reset()
        while not timestep.last():
            timestep = environment.step(policy.act(timestep.observation))
    assert main.main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0


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
    of_state = options(run, SMALL)
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
