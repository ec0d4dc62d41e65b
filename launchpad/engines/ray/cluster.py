"""The connection to Ray: a Ray of the program's own on this machine, or a named cluster."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from launchpad.engines.ray import guard

LOOPBACK = "127.0.0.1"

_REACH_SECS = 5.0
_START_SECS = 300.0
_GUARD_SECS = 6.0
# Ray forwards output in batches: how long to wait for the last lines of the nodes.
_LAST_LINES_SECS = 0.6
# Nodes exchange data over their own servers, so Ray's shared memory stays nearly empty.
_OBJECT_STORE_BYTES = 80 * 2**20

_INSTALLED = {"site-packages", "dist-packages"}
# Files that may change, for example at an import, although the code does not.
_EXCLUDES = ["__pycache__", ".git"]

# The secret of every Ray that this process starts.
_TOKEN = secrets.token_hex(32)


class RayCluster:
    """A connection to Ray, which the programs of this process share.

    Attributes:
      address: The named cluster, or None for this process's own Ray.
      host: IP address at which the cluster reaches this process.
    """

    def __init__(self, address: str | None, host: str, close: Callable[[], None]):
        self.address = address
        self.host = host
        self.num_users = 0
        self.close = close


_lock = threading.Lock()
_shared: RayCluster | None = None


def acquire(address: str | None) -> RayCluster:
    """Connects to Ray, or shares the connection that this process has.

    Args:
      address: "host:port", "env" for the value of RAY_ADDRESS, or None for any connection that
        exists, or else a Ray of this process's own.

    Raises:
      ValueError: the address can't be used, or this process is connected to another Ray.
      ConnectionError: no cluster answers there, or Ray does not start.
    """
    global _shared
    address = _check(address)
    with _lock:
        if _shared is None:
            _shared = _connect(address)
        elif address not in (_shared.address, None):
            raise ValueError(
                f"this process is connected to {_shared.address or 'a Ray of its own'}, so it "
                f"can't also use {address}: launch the other program from another process"
            )
        _shared.num_users += 1
        return _shared


def release(cluster: RayCluster) -> None:
    """Releases what `acquire` returned; the last release closes the connection."""
    global _shared
    with _lock:
        cluster.num_users -= 1
        if cluster.num_users == 0:
            _shared = None
            cluster.close()


def _check(address: str | None) -> str | None:
    if address == "env":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address:
            raise ValueError("address='env', but RAY_ADDRESS is not set: set it to host:port")
    if address is None:
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or {*host} & {"/", ":"}:
        raise ValueError(
            f"address={address!r}: expected 'host:port' of a Ray cluster that this machine is part "
            "of, with a name or an IPv4 address (ray start --node-ip-address), or 'env'; ray:// "
            "clients and 'auto' are not supported"
        )
    return address


def _connect(address: str | None) -> RayCluster:
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")  # Read when Ray is imported.
    # .gitignore may list generated or built code, which has to be shipped, too.
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")
    if not sys.stdout.isatty():
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
    import ray

    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if address not in (None, here):
            raise ValueError(f"this process is connected to the Ray at {here}, not to {address}")
        # The code that called ray.init() also ends Ray.
        return RayCluster(here, ray.util.get_node_ip_address(), lambda: None)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_settings(address))
        host = _start_own(stack) if address is None else _join(address, stack)
        return RayCluster(address, host, stack.pop_all().close)


@contextlib.contextmanager
def _settings(address: str | None) -> Iterator[None]:
    """Sets the environment variables that Ray reads, until the connection is closed.

    Ray caches them, so this makes it read them again, before and after: this process may have
    earlier and later connections, some of them made by other code.
    """
    from ray._private import ray_constants

    variables = {}
    if address is None:
        variables = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _TOKEN,  # Not the secret of any other cluster.
            # Ray's way of keeping all its daemons on the loopback interface.
            ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0",
            "RAY_gcs_server_port_wait_time_s": str(int(_START_SECS)),
        }
    elif _has_token() and "RAY_AUTH_MODE" not in os.environ:
        variables = {"RAY_AUTH_MODE": "token"}
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        _read_again()
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    """Makes Ray read its settings and its token from the environment again."""
    from ray._private import ray_constants
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    ray_constants.ENABLE_RAY_CLUSTER = ray_constants.env_bool(
        ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, True
    )
    # In this order: a thread of Ray that asks for the token in between finds one.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _has_token() -> bool:
    """True if there is a token for clusters that require one."""
    names = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    default = pathlib.Path.home() / ".ray" / "auth_token"
    return any(os.environ.get(name) for name in names) or default.exists()


def _start_own(stack: contextlib.ExitStack) -> str:
    """Starts a Ray in its own directory; `stack` ends it. Returns the host where it reaches us."""
    directory = os.path.realpath(tempfile.mkdtemp(prefix="lp-", dir=_short_directory()))
    try:
        watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, directory, str(os.getpid())],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError:
        os.rmdir(directory)
        raise

    def end_watcher(message: bytes) -> None:
        assert watcher.stdin is not None
        with contextlib.suppress(OSError):  # It has been killed.
            watcher.stdin.write(message)
            watcher.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            watcher.wait(_GUARD_SECS)

    import ray.job_config

    # Nodes import this package before they receive the launcher's search path.
    package_root = str(pathlib.Path(guard.__file__).parents[3])
    try:
        session = _Session(
            address="local",
            job_config=ray.job_config.JobConfig(_py_driver_sys_path=[package_root]),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=directory,
            # A program has more nodes, or fewer, than the workers that Ray would start in advance.
            _system_config={
                "prestart_worker_first_driver": False,
                "agent_register_timeout_ms": int(_START_SECS * 1000),
                # Nodes are the program itself, as with the other launch types. With Ray's default
                # of 15, any busy process of the same terminal takes nearly all CPU time from them.
                "worker_niceness": int(os.environ.get("RAY_worker_niceness", "0")),  # noqa: SIM112
            },
        )
    except BaseException:
        end_watcher(b"")  # It kills what has started.
        raise

    stack.callback(end_watcher, guard.DONE)
    stack.callback(session.close)
    return LOOPBACK


def _short_directory() -> str | None:
    """Returns where Ray's files go: the paths of its sockets must be below 108 characters."""
    return None if len(tempfile.gettempdir()) < 24 else "/tmp"


def _join(address: str, stack: contextlib.ExitStack) -> str:
    """Connects to a cluster; `stack` disconnects. Returns the host where it reaches us."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_SECS).close()
    except OSError as error:
        raise ConnectionError(
            f"no Ray cluster answers at {address}: {error}; expected the host:port that "
            "'ray start --head' printed"
        ) from error
    session = _Session(
        address=address, runtime_env={"py_modules": own_modules(), "excludes": _EXCLUDES}
    )
    stack.callback(session.close)
    import ray

    return str(ray.util.get_node_ip_address())


def _init(**options: Any) -> None:
    """Calls `ray.init()`, once more if its daemons were slow.

    Ray gives each of them 30 s, which is too short on a busy machine to load their code.
    """
    import ray

    try:
        ray.init(log_to_driver=True, logging_level=logging.ERROR, **options)
    except Exception:  # Ray raises a plain one if its daemons were slow.
        ray.shutdown()
        ray.init(log_to_driver=True, logging_level=logging.ERROR, **options)


class _Session:
    """Runs `ray.init()` and `ray.shutdown()` in one thread.

    Off the main thread, Ray does not install a handler of SIGTERM. And the kernel kills the daemons
    of a local Ray when the thread that started them ends, so that thread must stay alive.
    """

    def __init__(self, **options: Any):
        self._options = options
        self._has_started = threading.Event()
        self._should_end = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)
        self._thread.start()
        if not self._has_started.wait(2 * _START_SECS):
            raise ConnectionError(f"Ray has not started in {2 * _START_SECS:g} s")
        if self._error is not None:
            where = options["address"]
            text = " ".join(str(self._error).split())
            raise ConnectionError(f"Ray ({where}) can't be used: {text}") from self._error

    def close(self) -> None:
        self._should_end.set()
        self._thread.join()

    def _run(self) -> None:
        import ray
        from ray._private import worker

        # A signal to the whole job is for the launcher. The daemons inherit this from the thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGHUP))
        try:
            _init(**self._options)
        except BaseException as error:  # Raised again by the constructor.
            self._error = error
            with contextlib.suppress(Exception):  # Parts of it may have started.
                ray.shutdown()
            return
        finally:
            self._has_started.set()
        self._should_end.wait()
        threading.Event().wait(_LAST_LINES_SECS)
        node: Any = worker._global_node
        node.kill_all_processes = functools.partial(_kill_all, node)
        ray.shutdown()


def _kill_all(node: Any, **_: object) -> None:
    """Kills the daemons of a local Ray, and what they have started.

    Ray would wait for each daemon for a second, because they do not hear SIGTERM.
    """
    processes = []
    for [daemon] in node.all_processes.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(daemon.process.pid)
            processes += [process, *process.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    type(node).kill_all_processes(node, check_alive=False)  # Waits for their ends.


def own_modules() -> list[str]:
    """Returns the top-level packages and modules that are imported here and not installed.

    Installed packages, in a directory `site-packages`, must be installed on the cluster, too. The
    main script is not included: what it defines is pickled by value.
    """
    found = set()
    for name, module in list(sys.modules.items()):
        if "." in name or name.startswith("__"):
            continue
        for place in _places(module):
            if place.exists() and not _is_installed(place):
                found.add(str(place))
    return sorted(found)


def _is_installed(place: pathlib.Path) -> bool:
    # The prefix is no criterion: a project's directory may contain a virtual environment.
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
    return not _INSTALLED.isdisjoint(place.parts) or any(
        place.is_relative_to(pathlib.Path(library).resolve()) for library in libraries
    )


def _places(module: object) -> list[pathlib.Path]:
    """Returns a package's directories, or a module's file."""
    try:
        paths = [str(path) for path in module.__path__]  # type: ignore[attr-defined]
    except Exception:  # Odd objects in sys.modules have no source.
        file = getattr(module, "__file__", None)
        paths = [file] if isinstance(file, str) and file.endswith(".py") else []
    return [pathlib.Path(path).resolve() for path in paths]
