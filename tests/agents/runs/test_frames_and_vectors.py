"""A whole run from images and vectors together: what both of them show is learned."""

import dataclasses

import pytest

from agents import d4pg, load_policy
from agents.cli import policies
from agents.nodes.run_plan import EvaluationSchedule
from environments import PixelConfig
from rl_replicator.errors import ConfigError, UsageError
from rl_replicator.runs.metrics import read_metrics
from tests.agents.runs import test_pixel_runs as pixel_runs
from tests.environments import camera_fakes
from tests.environments.camera_fakes import LENGTH

pytestmark = pytest.mark.usefixtures("plain_graphs")
FRAME = PixelConfig(render="observed", state=("joints/elbow", "joints/wrist"))
AGENT = dataclasses.replace(
    pixel_runs.SMALL, normalize_observations=True, value_min=0.0, value_max=2.0
)


def options(run_dir, **changes):
    settings = {"env": "tests.environments.camera_fakes:robot", "frame": FRAME, "agent": AGENT}
    settings["evaluation"] = EvaluationSchedule(every=1000, episodes=2, last_episodes=5)
    return pixel_runs.options(run_dir, **(settings | changes))


@pytest.mark.timeout(300)
def test_it_learns_what_the_camera_shows_and_what_the_joints_show(tmp_path, monkeypatch):
    run_dir = tmp_path / "run"
    assert d4pg.command.train(options(run_dir, steps=2000)) == 0
    returns = read_metrics(run_dir, "evaluator")["episode_return"]
    # With either of them alone, the best return is 17.5, and 15 without both.
    assert returns[-1] > 0.89 * LENGTH, returns
    assert list((run_dir / "tensorboard" / "pictures").iterdir())
    assert d4pg.command.train(options(run_dir, steps=2040)) == 0  # It goes on.
    with pytest.raises(UsageError, match="pixels.state was"):
        frame = dataclasses.replace(FRAME, state=("all",))
        d4pg.command.train(options(run_dir, frame=frame))
    assert policies.play([str(run_dir), "--out", str(tmp_path / "film.gif")]) == 0
    policy = load_policy(run_dir)
    environment = policy.make_environment(seed=5)
    timestep, total = environment.reset(), 0.0
    while not timestep.last():
        timestep = environment.step(policy.act(timestep.observation))
        total += timestep.reward
    assert total > 0.88 * LENGTH
    mean = policy.weights.get_variables(["encoder"])["encoder/vector/variance"]
    assert 0.2 < mean[0] < 0.5 and 6 < mean[1] < 11  # Of uniform numbers: 1/3 and 25/3.
    monkeypatch.setattr(camera_fakes, "SIZE", 30)
    with pytest.raises(UsageError, match=r"with .*24, 24.* was trained, got .*30, 30"):
        load_policy(run_dir)


def test_frames_alone_are_not_normalised(tmp_path):
    frame = dataclasses.replace(FRAME, state=())
    with pytest.raises(ConfigError, match="normalize-observations: expected --frame.state with it"):
        d4pg.command.train(options(tmp_path / "run", frame=frame))
