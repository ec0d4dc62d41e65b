"""Fixtures of the Launchpad tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

import psutil
import pytest

import launchpad as lp
from launchpad.engines.ray import cluster

# Every engine passes the conformance tests.
ENGINES = (
    lp.LaunchType.TEST_MULTI_THREADING,
    lp.LaunchType.TEST_MULTI_PROCESSING,
    lp.LaunchType.RAY,
)


@pytest.fixture(scope="session")
def ray_connection():
    """Shares one Ray among all programs of the session, because starting Ray takes seconds."""
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
            if "launchpad.engines.process_entry" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue  # Ended meanwhile.
    return found


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    deadline = time.monotonic() + 30  # A busy machine is slow to end processes.
    while (left := node_processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        process.kill()
    running = lp.runtime.current()
    while (runtime := lp.runtime.current()) is not None:  # So that later tests do not fail as well.
        runtime.stop()
        assert runtime.stop_event.wait(10)
        time.sleep(0.1)
    assert not left, f"processes left behind: {left}"
    assert running is None, "a program is still running"


@pytest.fixture
def other_host():
    """(network namespace that is linked to this one, our address, function that cuts the link)."""
    name = f"lp-test-{os.getpid()}"
    near, far = f"lpa{os.getpid()}"[:15], f"lpb{os.getpid()}"[:15]
    # Unique to this process: other tests may have links at the same time.
    net = f"10.{64 + os.getpid() // 256 % 64}.{os.getpid() % 256}"

    def ip(words):
        return subprocess.run(["ip", *words.split()], capture_output=True, timeout=30).returncode

    if shutil.which("ip") is None or ip(f"netns add {name}"):
        pytest.skip("network namespaces need root and iproute2")
    try:
        if ip(f"link add {near} type veth peer name {far} netns {name}"):
            pytest.skip("this kernel has no veth")
        assert not ip(f"address add {net}.1/24 dev {near}") and not ip(f"link set {near} up")
        assert not ip(f"-n {name} address add {net}.2/24 dev {far}")
        assert not ip(f"-n {name} link set {far} up") and not ip(f"-n {name} link set lo up")
        nobody = "lladdr 02:00:00:00:00:99 nud permanent"

        def cut():
            """Drops every packet in both directions; neither side is notified."""
            assert not ip(f"neighbor replace {net}.2 {nobody} dev {near}")
            assert not ip(f"-n {name} neighbor replace {net}.1 {nobody} dev {far}")

        yield name, f"{net}.1", cut
    finally:
        ip(f"netns delete {name}")
        ip(f"link delete {near}")
