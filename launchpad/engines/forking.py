"""The fork server of this process: `multiprocessing`'s, with its own environment and imports.

It imports what nodes need, once, and forks a node for each request. A forked node is a child of the
fork server, which reports its process id and its exit status through a pipe.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import gc
import importlib
import logging
import os
import pathlib
import pickle
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from typing import Any

from launchpad.engines import engine, node_process
from rl_replicator.processes import output, process_group

logger = logging.getLogger("launchpad")

# Environment variables that are read at each use, and two of TensorFlow's. Variables that a library
# may read when it is imported can't be set for a process that has already imported it.
RUN_TIME_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "PYTEST_CURRENT_TEST",  # Different in each test.
        "PYTHONUNBUFFERED",
        "TF_CONFIG",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        # TensorFlow sets these when it is imported, in the launcher and in the server.
        "TF2_BEHAVIOR",
        "TPU_ML_PLATFORM",
    }
)
# The server has this long for its imports, and then for each fork, in seconds.
_IMPORT_SECS = 180.0
_FORK_SECS = 10.0
# How long to wait for the status of a node that has ended, in seconds.
_STATUS_SECS = 5.0
# The module that a node's fresh interpreter runs. Forked nodes show it, too, to be found by it.
TITLE = "launchpad.engines.process_entry"


class ForkError(Exception):
    """The fork server can't fork this node."""


class ForkServer(forkserver.ForkServer):
    """A fork server for nodes with the environment that this process has now. Thread-safe.

    It ends when `close` was called, or this process has ended, and its last node is gone.
    """

    def __init__(self, names: Sequence[str]):
        """Starts nothing yet; it will import modules of these names."""
        super().__init__()
        self.names = list(names)
        self._environment = dict(os.environ)
        self._path = engine.search_path()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_forked = False
        self._has_told = False
        self._request = threading.Lock()

    def suits(self, names: Sequence[str]) -> bool:
        """Returns whether a server started now for these modules would be equivalent."""
        has_all = {*names} <= {*self.names}
        # What was imported since, such as TensorFlow, may have appended directories.
        starts_alike = engine.search_path()[: len(self._path)] == self._path
        return has_all and self.serves(os.environ) and starts_alike

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Returns whether a node with this environment may be forked."""
        return _lasting(self._environment) == _lasting(environment)

    def ensure_running(self) -> None:
        """Starts the server, if it is not running; returns immediately."""
        with self._lock:  # type: ignore[attr-defined]
            if self._process is not None and self._process.poll() is None:
                return
            if self._process is not None and self._process.returncode >= 0:
                raise OSError("the fork server has ended by itself, and would do so again")
            self.close()
            self._has_forked = False
            # Only this user can open it. Not in TMPDIR: a socket's path has at most 107 bytes.
            directory = tempfile.mkdtemp(prefix="lp-", dir="/tmp")
            self._forkserver_address = f"{directory}/fork"
            reading, self._forkserver_alive_fd = os.pipe()
            try:
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(self._forkserver_address)
                    listener.listen()
                    self._process = self._start(listener.fileno(), reading)
            finally:
                os.close(reading)

    def _start(self, listener: int, alive: int) -> subprocess.Popen[bytes]:
        code = (
            "from launchpad.engines import forking; "
            f"forking.load({self.names!r}, {sys.argv!r}, {self._path!r}); "
            "from multiprocessing import forkserver; "
            f"forkserver.main({listener}, {alive}, [])"
        )
        environment = {**self._environment, "PYTHONUNBUFFERED": "1"}
        process = engine.start_python(["-c", code], environment, self._path, (listener, alive))
        assert process.stdout is not None and process.stderr is not None
        write = output.prefixed("[fork_server/0] ")
        output.LineCopier(write, "stdout", process.stdout)
        output.LineCopier(write, "stderr", process.stderr)
        return process

    def fork(self, name: str, files: Sequence[int]) -> ForkedGroup:
        """Forks a node.

        Args:
          name: "label/index" of the node.
          files: Descriptors: its control channel, its memory file, its stdout and its stderr.

        Raises:
          ForkError: it was not forked, and must be started in another way.
        """
        with self._request:
            try:
                status, data = self.connect_to_new_process(files)
                with os.fdopen(data, "wb") as pipe:
                    pickle.dump({}, pipe)
                    pickle.dump(_Fork(name), pipe)
                self._await(status)
                pid = forkserver.read_signed(status)
            except (OSError, EOFError) as error:
                self._fail(error)
                raise ForkError(str(error)) from error
            self._has_forked = True
            return ForkedGroup(pid, status)

    def _await(self, status: int) -> None:
        """Waits for the answer of the server, but not while a signal has stopped it."""
        left = _FORK_SECS if self._has_forked else _IMPORT_SECS
        while not select.select([status], [], [], _FORK_SECS)[0]:
            left -= _FORK_SECS
            assert self._process is not None
            if left <= 0 or process_group.is_stopped(self._process.pid):
                raise TimeoutError("the fork server did not answer")

    def close(self) -> None:
        """Lets the server end after its last node; one that a signal has stopped is killed."""
        if self._process is not None and process_group.is_stopped(self._process.pid):
            self._process.kill()
        if self._forkserver_alive_fd is not None:
            self.forget()
            path = pathlib.Path(self._forkserver_address)
            with contextlib.suppress(OSError):
                path.unlink()
                path.parent.rmdir()

    def forget(self) -> None:
        """Closes this process's part of the connection by which the server knows that it lives."""
        if self._forkserver_alive_fd is not None:
            os.close(self._forkserver_alive_fd)
            self._forkserver_alive_fd = None  # type: ignore[assignment]

    def _fail(self, error: Exception) -> None:
        if self._process is not None:
            self._process.kill()
            if self._process.wait() >= 0 and not self._has_told:  # It was not killed.
                self._has_told = True
                logger.warning("nodes are not forked, they start more slowly: %s", error)


class ForkedGroup(process_group.ProcessGroup):
    """A group whose leader was forked by the fork server. It outlives a death of the server."""

    def __init__(self, pid: int, status: int):
        """Takes charge of a node; its exit status arrives on the descriptor `status`."""
        super().__init__(pid)
        self._status = status
        self._process: int | None = None
        with contextlib.suppress(ProcessLookupError):  # It has ended.
            self._process = os.pidfd_open(pid)

    def _has_ended(self, flags: int) -> bool:
        if self._process is None:
            return True
        return bool(select.select([self._process], [], [], 0 if flags & os.WNOHANG else None)[0])

    def _exit_code(self) -> int:
        try:
            if select.select([self._status], [], [], _STATUS_SECS)[0]:
                return forkserver.read_signed(self._status)
        except EOFError:
            pass  # The server has died.
        finally:
            os.close(self._status)
            if self._process is not None:
                os.close(self._process)
        return process_group.UNKNOWN_STATUS


@dataclasses.dataclass(frozen=True)
class _Fork:
    """Turns a fork into a node: `multiprocessing` calls `_bootstrap` in it.

    Attributes:
      name: "label/index" of the node.
    """

    name: str

    def _bootstrap(self, parent_sentinel: int) -> None:
        files: Any = forkserver.get_inherited_fds()
        connection, memory, stdout, stderr = files
        os.setsid()
        for file, target in ((stdout, 1), (stderr, 2)):
            os.dup2(file, target)
            os.close(file)
        if "numpy" in sys.modules:
            # No two nodes may draw the same numbers. Python's `random` reseeds itself after a fork.
            sys.modules["numpy"].random.seed()
        _set_command_line(sys.executable, "-m", TITLE, self.name)
        node_process.leave(node_process.run(connection, memory))


def _set_command_line(*words: str) -> None:
    """Changes the command line that `ps` shows; cut to the length of the present one."""
    fields = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5).
    text = b"\0".join(word.encode() for word in words)[: max(0, end - begin - 1)]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k not in RUN_TIME_VARIABLES}


def load(names: Sequence[str], argv: Sequence[str], search_path: Sequence[str]) -> None:
    """Imports modules in the fork server; ends it if it can't be forked then.

    Args:
      names: The names of modules. Errors of their imports are left to the nodes.
      argv: The launcher's command line: some modules read it when they are imported.
      search_path: Directories from which to import first.
    """
    # TensorFlow imports pandas, and that pyarrow, whose allocator would start a thread.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    sys.argv[:] = argv
    node_process.import_from(search_path)
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException:  # The node that needs it raises the same error, for the user to see.
            continue
    if len(os.listdir("/proc/self/task")) > 1 + _num_openblas_threads():
        print("an imported module has started a thread; nodes start fresh interpreters", flush=True)
        os._exit(1)  # The interpreter would wait for the thread.
    # These objects stay: garbage collections in nodes need not visit them, nor copy their pages.
    gc.collect()
    gc.freeze()


def _num_openblas_threads() -> int:
    """Returns how many threads OpenBLAS has started; it starts them anew after a fork."""
    maps = pathlib.Path("/proc/self/maps").read_text().splitlines()
    libraries = {line.split()[-1] for line in maps if "openblas" in line.rpartition("/")[2]}
    size = len(os.sched_getaffinity(0))
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        if os.environ.get(name, "").isdecimal():
            size = max(1, int(os.environ[name]))
            break
    return len(libraries) * (size - 1)


_lock = threading.Lock()
_server: ForkServer | None = None
_preloaded: dict[str, None] = {}  # An ordered set.


def preload(*names: str) -> None:
    """Starts to import modules in the process that nodes are forked from; returns immediately.

    For nodes that run as processes of this machine: each module is imported once, and in parallel
    with the launcher's own work, if this is called before `launch`. Nodes import what else they
    need themselves. The modules must start no threads and must not initialise TensorFlow, OpenGL or
    a GPU when they are imported.

    Args:
      *names: Names of modules. Errors of their imports are left to the nodes.
    """
    _preloaded.update(dict.fromkeys(names))
    current()


def current(imports: Sequence[str] = ()) -> ForkServer:
    """Returns the fork server for what is launched now; starts one if necessary.

    Args:
      imports: What it imports if nothing was preloaded.
    """
    global _server
    with _lock:
        names = list(_preloaded) or imports
        if _server is None or not _server.suits(names):
            if _server is None:
                atexit.register(_close)
            else:
                _server.close()
            _server = ForkServer(names)
            with contextlib.suppress(OSError):  # `fork` tries again.
                _server.ensure_running()
        return _server


def _close() -> None:
    global _server
    if _server is not None:
        _server.close()
    _server = None


def _forget() -> None:
    """Forgets the parent's server in a fork, whose copy of the connection would keep it alive."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        atexit.unregister(_close)
        _server.forget()
    _server = None


os.register_at_fork(after_in_child=_forget)
