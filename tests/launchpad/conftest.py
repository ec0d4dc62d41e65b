"""Fixtures of the Launchpad tests."""

from __future__ import annotations

import time

import psutil
import pytest

import launchpad as lp
from launchpad.launch.ray import cluster

# Every engine passes the conformance tests.
ENGINES = (
    lp.LaunchType.TEST_MULTI_THREADING,
    lp.LaunchType.TEST_MULTI_PROCESSING,
    lp.LaunchType.RAY,
)


@pytest.fixture(scope="session")
def ray_connection():
    """Keeps one Ray for all programs of the session: starting one takes seconds."""
    connection = cluster.acquire(None)
    yield
    cluster.release(connection)


@pytest.fixture(params=ENGINES, ids=lambda t: t.value)
def engine(request) -> lp.LaunchType:
    if request.param == lp.LaunchType.RAY:
        request.getfixturevalue("ray_connection")
    return request.param


def node_processes() -> list[psutil.Process]:
    """Returns the node processes that descend from this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "launchpad.launch.process_entry" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue  # Ended meanwhile.
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    deadline = time.monotonic() + 30  # A busy machine is slow to end processes, too.
    while (left := node_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        process.kill()
    running = lp.runtime.current()
    while (runtime := lp.runtime.current()) is not None:  # So that later tests don't fail too.
        runtime.stop()
        assert runtime.stop_event.wait(10)
        time.sleep(0.1)
    assert not left, f"processes left behind: {left}"
    assert running is None, "a program is still running"
