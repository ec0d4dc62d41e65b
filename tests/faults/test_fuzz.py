"""Random data in place of checkpoints, settings and remote calls: one line, and no crash."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launchpad.rpc import credentials, server, wire
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.checkpoints.parts import JsonPart
from rl_replicator.errors import CheckpointError, UsageError
from rl_replicator.runs.run_directory import RunDirectory

often = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,  # The same in every run of the suite.
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
    found = server.MethodServer(b"s" * credentials.SECRET_BYTES)
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


@often
@given(value=st.binary(max_size=120))
def test_signatures_of_calls(value):
    key = credentials.sign_request(
        b"s" * credentials.SECRET_BYTES, b"", credentials.Ticket(b"c" * 16, 1, 0)
    )[0][0]
    metadata = ((key, value), ("other", "text"))
    assert credentials.verify_request(b"s" * credentials.SECRET_BYTES, b"", metadata) is None
