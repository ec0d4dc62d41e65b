"""What the replay refuses to store: errors that name the field, and who gave it."""

import types

import dm_env
import numpy as np
import pytest
import tree
from acme import specs

from agents.replay.config import SequenceConfig
from agents.replay.frames import FrameLayout
from agents.replay.local import LocalQueue
from agents.replay.transitions import TransitionLayout
from agents.replay.unrolls import UnrollAdder, UnrollLayout
from tests.agents.fixed_samples import make_spec
from tests.agents.replay.queue_table import make_adder

EXTRAS = {
    "log_prob": specs.Array((), np.float32, "log_prob"),
    "state": specs.Array((2, 2), np.float32, "state"),
}
STATE, FRAME = specs.Array((2,), np.float32), specs.Array((4, 4, 3), np.uint8)
LAYOUTS = {
    "state": TransitionLayout(make_spec(STATE, 1), EXTRAS),
    "frames": FrameLayout(make_spec(FRAME, 1), 2, 2, 1, EXTRAS),
    "unrolls": UnrollLayout(make_spec(STATE, 1), 4, None, EXTRAS),
}


def zeros(spec):
    return tree.map_structure(lambda each: np.zeros(each.shape, each.dtype), spec)


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_step_is_checked(kind, monkeypatch):
    layout, blank = LAYOUTS[kind], zeros(FRAME if kind == "frames" else STATE)
    if kind == "unrolls":
        adder = UnrollAdder(LocalQueue(), layout, 0.9, lambda seconds: None)
    else:
        writer = types.SimpleNamespace(begin=lambda _: None, append_observation=lambda _: None)
        monkeypatch.setattr(layout, "open", lambda *_: writer)
        adder = make_adder(None, layout, 3)
    action, extras = np.zeros(1, np.float32), zeros(EXTRAS)
    wrong = np.zeros(1, blank.dtype)
    with pytest.raises(ValueError, match="expected add_first before add"):
        adder.add(action, dm_env.transition(0.0, blank), extras)
    with pytest.raises(ValueError, match=r"observation .* the environment gave shape \(1,\)"):
        adder.add_first(dm_env.restart(wrong))
    adder.add_first(dm_env.restart(blank))
    adder.add(action, dm_env.transition(0.0, blank), extras)
    for step, message in (
        ((action, blank, ()), r"replay expects extras like .* the agent gave \(\)"),
        ((action, blank, extras | {"state": action}), r"extras of shape \(2, 2\) .* shape \(1,\)"),
        ((np.zeros(1), blank, extras), "action .* the agent gave .* float64; correct what its"),
        ((action, wrong, extras), r"observation .* the environment gave shape \(1,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            adder.add(step[0], dm_env.transition(0.0, step[1]), step[2])


def test_an_agent_without_extras_gives_none():
    layout = TransitionLayout(make_spec(STATE, 1))
    assert layout.pack_extras(()).shape == (0,)
    for extras in ({"log_prob": np.zeros(1, np.float32)}, *map(np.zeros, (0, 1, 2))):
        with pytest.raises(ValueError, match=r"replay expects extras like \(\)"):
            layout.pack_extras(extras)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TransitionLayout(make_spec(specs.Array((2, 1), np.float32), 1)), "float32 vector"),
        (lambda: TransitionLayout(make_spec(specs.Array((2,), np.float64), 1)), "float32 vector"),
        (lambda: TransitionLayout(make_spec(STATE, FRAME)), "vector as action.*wrap the env"),
        (lambda: FrameLayout(make_spec(FRAME, FRAME), 3, 3, 4), "vector as action.*wrap the env"),
        (lambda: FrameLayout(make_spec(specs.Array((4,), np.uint8), 1), 3, 3, 4), "with `pixels=`"),
        (
            lambda: TransitionLayout(make_spec(STATE, 1), specs.Array((), np.int64, "step")),
            "expected float32 extras, got 'step' of int64",
        ),
        *[
            (lambda window=window: SequenceConfig(*window), "expected length > prefix")
            for window in ((4, 4, 0), (4, 1, 3), (4, 0, 0), (4, 1, -1))
        ],
    ],
)
def test_what_cannot_be_laid_out_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
