"""Every name in docs/launchpad-api.md, and the semantics that programs rely on."""

from __future__ import annotations

import functools
import importlib
import logging
import pickle
import re
import socket
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import pytest

import launchpad as lp
from launchpad import lifecycle
from launchpad.engines import serialization
from launchpad.nodes import base
from launchpad.nodes import batching as courier_utils
from tests.launchpad import programs
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "launchpad-api.md"
TEXT = DOCUMENT.read_text()
ROWS = re.findall(r"^\| [`*]([\w.]+)[`*] \| (\w+) \|(.*)\|$", TEXT, re.MULTILINE)
for names in re.findall(r"^Same: (.*(?:\n.+)*)", TEXT, re.MULTILINE):
    ROWS += [(name, "same", "") for name in re.findall(r"`([\w.]+)`", names)]


@pytest.fixture
def courier(monkeypatch):
    """The package `courier`, importable as a top-level package as in an installation."""
    monkeypatch.syspath_prepend(ROOT / "launchpad" / "upstream")
    monkeypatch.delitem(sys.modules, "courier", raising=False)
    yield importlib.import_module("courier")
    sys.modules.pop("courier", None)


def find(name):
    """Returns the object of a dotted name; launchpad.launch is both a module and a function."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise AttributeError(name)


@pytest.mark.parametrize(("name", "here", "text"), ROWS, ids=[name for name, _, _ in ROWS])
def test_a_name_is_what_the_table_says(courier, name, here, text):
    assert here in ("same", "more", "differs", "absent")
    assert bool(text.strip()) == (here != "same")
    if here == "absent":
        with pytest.raises(AttributeError):
            find(name)
    else:
        assert find(name) is not None


def test_an_installation_has_courier_beside_launchpad():
    from setuptools import Distribution
    from setuptools.config import pyprojecttoml

    distribution = Distribution({"src_root": str(ROOT)})
    pyprojecttoml.apply_configuration(distribution, ROOT / "pyproject.toml")
    packages = set(distribution.packages)
    assert {"agents", "courier", "environments", "launchpad", "rl_replicator"} <= packages
    assert not any(name.startswith("launchpad.upstream") for name in packages)
    assert {name.partition(".")[0] for name in packages} == {
        *("agents", "courier", "environments", "launchpad", "rl_replicator")
    }
    place = distribution.package_dir["courier"]
    assert (ROOT / place / "__init__.py").exists() and place.startswith("launchpad/")


def test_courier_outside_of_a_program(courier):
    server = courier.Server("name", thread_pool_size=2)
    server.Bind("add", lambda a, b: a + b, True)  # With upstream's `is_priority`.
    for name in ("forward", "call"):  # Names that clients might have as attributes of their own.
        server.BindHandler(name, lambda name=name: name)
    server.Bind("fails", lambda: [][0])
    for early in (server.Stop, server.Join, lambda: server.SetIsHealthy(True)):
        with pytest.raises(ValueError, match="not started"):
            early()
    assert not server.has_started
    server.Start()
    assert server.has_started and server.address == f"localhost:{server.port}"
    with pytest.raises(ValueError, match="already started"):
        server.Start()
    server.SetIsHealthy(False)
    client = pickle.loads(pickle.dumps(courier.Client(server.address, call_timeout=60)))
    assert client.add(4, b=7) == 11 and client.futures.add(1, 2).result(60) == 3
    assert (client.forward(), client.call()) == ("forward", "call")
    assert courier.list_methods(client) == ["add", "call", "fails", "forward"]
    for call in (client.fails, lambda: client.futures.fails().result(60)):
        with pytest.raises(courier.StatusNotOk, match="index out of range") as error:
            call()
        assert isinstance(error.value, IndexError)
    server.Unbind("add")
    with pytest.raises(courier.StatusNotOk, match="method add not found"):
        client.add(4, 7)
    with pytest.raises(OSError, match="is taken"):
        courier.Server(port=server.port)
    server.Stop()
    server.Join()
    import reverb  # noqa: F401 - it writes a class into pybind11_abseil.status
    from pybind11_abseil import status

    assert status.StatusNotOk is courier.StatusNotOk
    from courier.python import client as client_module
    from courier.python import py_server

    assert client_module.Client is courier.Client and py_server.Server is courier.Server
    of_object = courier_utils.make_courier_server(Adder(), "name", thread_pool_size=2)
    of_object.Start()
    assert courier.list_methods(courier.Client(of_object.address)) == ["add"]
    of_object.Stop()
    gone = courier.Client(server.address, wait_for_ready=False, call_timeout=60)
    with pytest.raises(courier.StatusNotOk):
        gone.add(1, 2)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda server: [lp.MultiProcessingColocation([server])] * 2,
        lambda server: [server, lp.MultiThreadingColocation([server])],
    ],
)
def test_a_server_may_be_in_one_colocation_once(wrap):
    program = lp.make_program(*wrap(lp.CourierNode(dict)))
    told = "^the same server is in node/0 and in node/1, and.*make another node$"
    with pytest.raises(ValueError, match=told):
        lp.launch(program, "test_mt")


def test_a_program_that_runs_is_not_launched_again():
    program, recorder = programs.recorder_program()
    for _ in range(2):
        manager = lp.launch(program, "test_mt")
        with pytest.raises(ValueError, match="'test' is already running.*recorder/0.*make another"):
            lp.launch(program, "test_mt")
        assert manager.resolve(recorder).entries() == []
        manager.stop_and_wait()


def test_a_function_added_twice_runs_twice(tmp_path):
    program, recorder = programs.recorder_program(tmp_path / "entries")
    node = lp.PyNode(lambda client: client.add("ran"), recorder)
    with program.group("function"):
        program.add_node(node)
        program.add_node(node)
    manager = lp.launch(program, "test_mt")
    manager.wait(["function"])  # Upstream's first argument.
    assert (tmp_path / "entries").read_text() == "ran\nran\n"
    manager.cleanup_after_test(unittest.TestCase())
    failing = lp.launch(lp.make_program(lp.PyNode(lambda: [][0])), "test_mt")
    with pytest.raises(AssertionError, match="IndexError"):
        failing.cleanup_after_test(unittest.TestCase())


def test_a_failure_that_was_caught_is_not_raised_again():
    class Test(unittest.TestCase):
        def test(self):
            program = lp.make_program(lp.PyNode(lambda: [][0]))
            with pytest.raises(lp.NodeFailedError):
                lp.launch(program, "test_mt", test_case=self).wait()

    result = unittest.TestResult()
    Test("test").run(result)
    assert result.wasSuccessful(), result.errors


@pytest.mark.parametrize("kind", [lp.PyClassNode, lp.CourierNode])
def test_run_of_a_subclass_is_called(kind):
    called = []

    class Own(kind):
        def run(self):
            called.append("before")
            super().run()

    class Worker:
        def run(self):
            called.append("run")

    assert lp.launch(lp.make_program(Own(Worker)), "test_mt").wait(timeout=60)
    node = kind(Worker)
    node.disable_run()
    program = lp.make_program(node, lp.PyNode(int))
    assert lp.launch(program, "test_mt").wait(timeout=60)
    assert called == ["before", "run"]


def test_a_cached_function_that_can_not_be_imported_is_sent():
    @functools.lru_cache(maxsize=3)
    def twice(number):
        return 2 * number

    sent = pickle.loads(serialization.dumps({"a": twice}))["a"]
    assert sent(4) == 8 and sent.cache_parameters() == {"maxsize": 3, "typed": False}
    assert sent.cache_info().currsize == 1 and twice.cache_info().currsize == 0


class Adder:
    def add(self, a, b):
        return a + b


class _StartsItself(Adder):
    """Takes over its server, as upstream's objects may."""

    def set_courier_server(self, server):
        self._server, self._had_started = server, server.has_started

    def run(self):
        self._server.Start()

    def states(self):
        return self._had_started, self._server.has_started


def test_an_object_starts_the_server_that_it_is_given():
    node = lp.CourierNode(_StartsItself)
    handle = node.create_handle()
    manager = lp.launch(lp.make_program(node), "test_mt")
    assert manager.resolve(handle).states() == (False, True)
    manager.stop_and_wait()


def test_a_node_runs_without_a_launch():
    node = lp.CourierNode(Adder, courier_kwargs={"name": "x"})
    handle = node.create_handle()
    node.bind_addresses()
    threading.Thread(target=node.run, daemon=True).start()
    handle.set_client_kwargs(call_timeout=60)
    assert handle.dereference().add(2, 3) == 5
    assert lp.PyNode.to_executables([lp.PyNode(lambda: 9)], "label", None)[0]() == 9
    handle.connect(node, "label")
    assert handle.transform([1]) == [1]
    assert lp.PyNode.default_launch_config(lp.LaunchType.TEST_MULTI_THREADING) is None
    with pytest.raises(RuntimeError):
        node.launch_context  # noqa: B018
    assert base.extract_handles([handle]) == [handle]


def test_a_subclass_may_replace_the_function_of_a_node():
    ran = []

    class Own(lp.PyNode):
        @property
        def function(self):
            usual = super().function
            return lambda: ran.append((usual(), "own"))

    manager = lp.launch(lp.make_program(Own(lambda x: x, "given")), "test_mt")
    assert manager.wait(timeout=60) and ran == [("given", "own")]


def test_code_of_a_node_runs_in_the_launcher_beside_a_program():
    ran = []
    manager = lp.launch(lp.make_program(lp.PyNode(lp.wait_for_stop)), "test_mt")
    lp.PyNode(lambda: ran.append("here")).execute()
    lp.make_node_killer()(RuntimeError("stuck"), 1.0)
    assert not manager.wait(timeout=0.5) and ran == ["here"]
    manager.stop_and_wait()


def test_a_node_without_a_launch_does_not_serve_where_nobody_looks():
    node = lp.CourierNode(Adder)
    node.bind_addresses()
    host, _, port = node.courier_address.resolve().rpartition(":")
    told = f"port {port} of {host} is taken; choose another one"
    with socket.create_server((host, int(port))), pytest.raises(OSError, match=told):
        node.run()


def test_a_launch_overrides_addresses_that_were_bound_by_hand():
    program, recorder = programs.recorder_program()
    program.add_node(lp.PyNode(programs.leave_on_stop, recorder), label="node")
    for node in program.get_all_nodes():
        node.bind_addresses()
    by_hand = recorder.dereference().address
    manager = lp.launch(program, "test_mp")
    client = lp.CourierClient(program.groups["recorder"][0].courier_address, call_timeout=60)
    wait_until(lambda: "waiting" in client.entries())
    assert client.address != by_hand
    manager.stop_and_wait()
    assert recorder.dereference().address == by_hand


def test_arguments_of_upstream(caplog, tmp_path):
    program, _ = programs.recorder_program(tmp_path / "entries")
    caplog.set_level(logging.WARNING, "launchpad")
    manager = lp.launch(
        program,
        "test_mt",
        local_resources={"nobody": lp.PythonProcess()},
        terminal="tmux_session",
        controller_xm_requirements={},
        serialize_py_nodes=True,
    )
    manager.stop_and_wait()
    assert "output goes to this terminal" in caplog.text and "'nobody'" in caplog.text
    client = lp.CourierClient("localhost:1", load_balancing_policy=None, propagate_deadline=False)
    assert client._connection.timeout is None  # No deadline, as in upstream.


def test_the_launching_process_has_the_worker_manager_of_its_program():
    program, _ = programs.recorder_program()
    manager = lp.launch(program, "test_mt")
    lifecycle.get_worker_manager().stop_and_wait()
    manager.wait()


def test_what_launch_refuses():
    class Own(lp.MultiProcessingColocation):
        def run(self):
            pass

    own = lp.make_program(Own([lp.PyNode(int)]))
    program, _ = programs.recorder_program()
    locked = lp.make_program(lp.PyNode(print, threading.Lock()))
    types = "^expected launch_type to be one of 'local_mt', .*'ray', got {}; use"
    policy, resources = {"recorder": 3}, {"recorder": {}}
    one = {"recorder": lp.PythonProcess(args={"lp_termination_notice_secs": "six"})}
    for error, told, first, engine, kwargs in (
        (ValueError, types.format("'nosuch'"), program, "nosuch", {}),
        (ValueError, types.format("'vertex_ai'"), program, "vertex_ai", {}),
        (ValueError, types.format("3"), program, 3, {}),
        (ValueError, r"expected a program, or several, got \[\]", [], "test_mt", {}),
        (ValueError, "no nodes", lp.Program("empty"), "test_mt", {}),
        (TypeError, "without a run.. of its own, got Own", own, "test_mt", {}),
        (ValueError, "terminal to be one of .*, got 'vt100'", program, None, {"terminal": "vt100"}),
        (ValueError, "only for launch_type='ray'", program, "test_mp", {"address": "host:1"}),
        (ValueError, "flag --lp_term", program, "test_mp", {"local_resources": one}),
        (TypeError, r"\['recorder'\] is a int; e", program, None, {"restart_policies": policy}),
        (ValueError, "names .'a'.*'rec", program, None, {"restart_policies": {"a": None}}),
        (TypeError, r"\['recorder'\] is a dict; e", program, None, {"local_resources": resources}),
        (TypeError, r"node node/0 can't be sent.*lp\.Deferred", locked, "test_mp", {}),
        (
            RuntimeError,  # As upstream.
            r"label 'node' were not serializable: node node/0.*lp\.Deferred",
            locked,
            None,
            {"serialize_py_nodes": True},
        ),
    ):
        with pytest.raises(error, match=told):
            lp.launch(first, engine or "test_mt", **kwargs)
    for wrong in ({"gpus": 1.5}, {"cpus": -1}, {"threads": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            lp.PythonProcess(**wrong)
    with pytest.raises(RuntimeError):
        lifecycle.get_worker_manager()
    lp.register_stop_handler(print)  # It does nothing outside of a program.
    lp.unregister_stop_handler(print)


def test_functions_of_nodes_are_written_to_a_file(tmp_path):
    serialization.serialize_nodes(str(tmp_path / "good"), "actor", [lp.PyNode(lambda: 5)])
    (function,) = pickle.loads((tmp_path / "good").read_bytes())
    assert function() == 5


class _Ping(base.Handle):
    connected = None

    def connect(self, node, label):
        self.connected = (node, label)

    def dereference(self):
        return "pong"


class _OwnNode(base.Node):
    """A kind of node as users of upstream write them."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def create_handle(self):
        return self._track_handle(_Ping())

    @staticmethod
    def to_executables(nodes, label, launch_context):
        return [functools.partial(node.path.write_text, label) for node in nodes]


def test_own_kinds_of_nodes_and_handles(tmp_path):
    node = _OwnNode(tmp_path / "label")
    handle = node.create_handle()
    user = lp.PyNode(lambda text: (tmp_path / "text").write_text(text), handle)
    assert lp.launch(lp.make_program(node, user), "test_mt").wait(timeout=60)
    assert handle.connected == (user, "node")
    assert (tmp_path / "label").read_text() == "node" and (tmp_path / "text").read_text() == "pong"


def test_an_object_that_has_every_attribute_is_served():
    """And upstream's arguments of a server are accepted."""
    node = lp.CourierNode(mock.Mock, courier_kwargs={"name": "x"})
    handle = node.create_handle()
    manager = lp.launch(lp.make_program(node), "test_mt")
    assert manager.resolve(handle).reset_mock() is None
    manager.stop_and_wait()
    stand_in, program = mock.Mock(), lp.Program("stand-ins")
    for label in ("one", "two"):  # It has no address that could have one server only.
        program.add_node(stand_in, label=label)
    assert program.get_all_nodes() == [stand_in, stand_in]
