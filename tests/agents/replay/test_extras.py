"""What actors must not record with an action; test_adder_reference.py compares what they do."""

import types

import dm_env
import numpy as np
import pytest
from acme import specs

from agents.replay.frames import FrameLayout
from agents.replay.transitions import TransitionLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import make_adder

EXTRAS = {
    "log_prob": specs.Array((), np.float32, "log_prob"),
    "state": specs.Array((2, 2), np.float32, "state"),
}
STATE, FRAME = specs.Array((2,), np.float32), specs.Array((4, 4, 3), np.uint8)


def make_layout(observations):
    spec = make_spec(observations, 1)
    if observations is STATE:
        return TransitionLayout(spec, EXTRAS)
    return FrameLayout(spec, 2, 2, 1, EXTRAS)


def extras_of(t):
    return {"log_prob": np.float32(-t), "state": np.full((2, 2), 10 * t, np.float32)}


@pytest.mark.parametrize("observations", [STATE, FRAME], ids=["state", "frames"])
def test_extras_of_another_kind_are_named(observations):
    layout = make_layout(observations)
    with pytest.raises(ValueError, match=r"replay expects extras like .* the agent gave \(\)"):
        layout.pack_extras(())
    with pytest.raises(ValueError, match=r"extras of shape \(2, 2\).* the agent gave .*\(3,\)"):
        layout.pack_extras(extras_of(1) | {"state": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match="expected float32 extras, got 'step' of int64"):
        TransitionLayout(
            specs.EnvironmentSpec(STATE, STATE, STATE, STATE), specs.Array((), np.int64, "step")
        )


def test_an_agent_without_extras_gives_none():
    layout = TransitionLayout(specs.EnvironmentSpec(STATE, STATE, STATE, STATE))
    assert layout.pack_extras(()).shape == (0,)
    with pytest.raises(ValueError, match=r"replay expects extras like \(\)"):
        layout.pack_extras({"log_prob": np.zeros(1, np.float32)})
    for size in (0, 1, 2):
        with pytest.raises(ValueError, match=r"replay expects extras like \(\)"):
            layout.pack_extras(np.zeros(size, np.float32))


def test_every_step_is_checked():
    layout = make_layout(STATE)
    writer = types.SimpleNamespace(begin=lambda _: None, append_observation=lambda _: None)
    layout.open = lambda *_: writer
    adder = make_adder(None, layout, 3)
    blank, action = np.zeros(2, np.float32), np.zeros(1, np.float32)
    adder.add_first(dm_env.restart(blank))
    adder.add(action, dm_env.transition(0.0, blank), extras_of(0))
    with pytest.raises(ValueError, match=r"extras of shape \(2, 2\) .* gave shape \(1,\)"):
        adder.add(action, dm_env.transition(0.0, blank), extras_of(1) | {"state": action})
    with pytest.raises(ValueError, match="action .* the agent gave .* float64; correct what its"):
        adder.add(np.zeros(1), dm_env.transition(0.0, blank), extras_of(1))
    with pytest.raises(ValueError, match=r"observation .* the environment gave shape \(1,\)"):
        adder.add(action, dm_env.transition(0.0, action), extras_of(1))


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": specs.Array((2, 1), np.float32)},
        {"observations": specs.Array((2,), np.float64)},
        {"actions": FRAME},
    ],
)
def test_observations_and_actions_are_flat_float32(changes):
    flat = specs.EnvironmentSpec(STATE, STATE, STATE, STATE)
    with pytest.raises(ValueError, match="expected a float32 vector as .*wrap the environment"):
        TransitionLayout(flat._replace(**changes))
