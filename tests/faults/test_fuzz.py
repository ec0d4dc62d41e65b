"""Random data in place of checkpoints, settings, calls, rows and datasets: one line, and no crash.

The suite tries the same examples each time. To try others, say how many of each kind:

    FUZZ_EXAMPLES=5000 python -m pytest tests/faults/test_fuzz.py --timeout 3000
"""

import json
import os
import shutil
import types

import numpy as np
import pytest
from dm_env import specs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from agents.datasets.minari_files import EpisodeDataset
from environments.flat import make_actions
from launchpad.rpc import server, tls, wire
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import CheckpointError, UsageError
from rl_replicator.runs.run_directory import RunDirectory

_COUNT = os.environ.get("FUZZ_EXAMPLES")
often = settings(
    max_examples=int(_COUNT or 60),
    deadline=None,
    derandomize=_COUNT is None,  # The same in every run of the suite.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for step in (1, 2):
        Checkpointer(folder).save(step, {"state": JsonPart(lambda: {"a": [1, 2.5]}, print)})
    return folder


@pytest.fixture(scope="module")
def served():
    found = server.MethodServer(b"s" * tls.SECRET_BYTES)
    yield found
    found.stop(0)


def one_line(error):
    assert "\n" not in str(error.value).strip() and len(str(error.value)) > 20


def spoil(path, data):
    """Overwrites a part of a file, cuts it off there, or replaces all of it."""
    content = path.read_bytes()
    how = data.draw(st.sampled_from(["overwrite", "cut", "replace"]))
    at = data.draw(st.integers(0, len(content)))
    new = data.draw(st.binary(max_size=20))
    spoiled = {
        "overwrite": content[:at] + new + content[at + len(new) :],
        "cut": content[:at],
        "replace": new,
    }[how]
    path.write_bytes(spoiled)
    return spoiled != content


@often
@given(data=st.data())
def test_checkpoints(saved, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("spoiled") / "run"
    shutil.copytree(saved, folder)
    newest = max(folder.iterdir())
    is_spoiled = spoil(data.draw(st.sampled_from(sorted(newest.rglob("*.json")))), data)
    state = {}
    checkpointer = Checkpointer(folder)
    message = None
    try:
        checkpointer.restore({"state": JsonPart(dict, state.update)})
    except CheckpointError as error:
        message = str(error)
    if message is None:  # Nothing was spoiled, or only white space.
        assert state == {"a": [1, 2.5]}
    else:
        assert is_spoiled and state == {} and "\n" not in message
    assert checkpointer.set_aside_damaged().step in (1, 2)
    state.clear()
    checkpointer.restore({"state": JsonPart(dict, state.update)})
    assert state == {"a": [1, 2.5]}
    shutil.rmtree(folder)


@often
@given(content=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_settings_of_a_run(tmp_path, content):
    run = RunDirectory(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(UsageError) as error:
        run.config()
    one_line(error)


@often
@given(body=st.binary(max_size=80), name=st.text(max_size=5))
def test_bodies_of_calls(served, body, name):
    served.bind(name, lambda *args: args)
    for request in (body, wire.encode(b"", name.encode(), ((), {})) + body):
        answer = served._answer(request)
        assert answer[:1] in (wire.OK, wire.RAISED)
        wire.decode(answer, 1)


numbers = st.floats(width=32) | st.floats(-1.0, 1.0, width=32)
arrays = npst.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7),
)


@often
@given(
    steps=st.integers(0, 3),
    extra=st.sampled_from([0, 0, 0, 1, -1]),
    shapes=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    data=st.data(),
)
def test_episodes_of_a_dataset(steps, extra, shapes, data):
    """An episode is either accepted or refused with one line; nothing else can happen."""

    def draw(*shape):
        return data.draw(npst.arrays(np.float32, shape, elements=numbers))

    episode = types.SimpleNamespace(
        observations=draw(steps + 1, shapes[0]),
        actions=draw(max(steps + extra, 0), shapes[1]),
        rewards=draw(steps),
        terminations=data.draw(npst.arrays(np.bool_, (steps,))),
        truncations=data.draw(npst.arrays(np.bool_, (steps,))),
        infos=None,
    )
    actions = make_actions(specs.BoundedArray((shapes[1],), np.float32, -1.0, 1.0), "target")
    try:
        read = EpisodeDataset("mine", None, actions)._episode(3, episode)
    except UsageError as error:
        message = str(error)
    else:
        message = None
    if message is not None:
        assert "\n" not in message and "in episode 3 of the dataset mine" in message
        return
    assert len(read.actions) == len(read.rewards) == len(read.discounts) == steps > 0
    assert len(read.observations) == steps + 1 and np.abs(read.actions).max() <= 1
    for array in (read.observations, read.actions, read.rewards, read.discounts):
        assert np.isfinite(array).all()
