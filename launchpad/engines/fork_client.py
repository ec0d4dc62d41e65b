"""The launcher's side of the fork server: one for all programs of a launching process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence

from launchpad.engines import engine, fork_requests
from rl_replicator.processes import output

logger = logging.getLogger("launchpad")

# Environment variables that are read at each use. Variables that a library may read when it is
# imported can't be set for a process that has already imported it.
RUN_TIME_VARIABLES = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "PYTEST_CURRENT_TEST",  # Different in each test.
        "PYTHONUNBUFFERED",
        "TF_CONFIG",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
    }
)
# The server has this long to import everything, or to fork, in seconds; then it is killed.
_ANSWER_SECS = 180.0
# Longest wait for the end of a killed server, in seconds.
_END_SECS = 10.0
# A server that has ended this often without forking a node is not restarted.
_MOST_UNPROVEN = 3
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37


class ForkError(Exception):
    """The fork server can't fork this node."""


class ForkServer:
    """A process that nodes are forked from. It is restarted when it dies."""

    def __init__(self) -> None:
        """Starts it, in a thread that lives as long: the kernel kills it when the thread ends."""
        # Read here, because the caller may have changed them when the thread starts the server.
        self._environment = dict(os.environ)
        self._path = engine.search_path()
        self._imports: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._num_unproven = 0
        self._trouble = ""
        self._changed = threading.Condition()
        self._request = threading.Lock()
        threading.Thread(target=self._run, name="fork server", daemon=True).start()

    @property
    def pid(self) -> int | None:
        """Process id of the server; None if there is none at the moment."""
        process = self._process
        return process.pid if process is not None else None

    @property
    def is_current(self) -> bool:
        """True if a server started now would be equivalent: same environment, same search path."""
        return self.serves(os.environ) and self._path == engine.search_path()

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Returns whether a node with this environment may be forked."""
        return _lasting(self._environment) == _lasting(environment)

    def preload(self, names: Sequence[str]) -> None:
        """Makes the server import these modules; returns immediately."""
        with self._changed:
            new = [name for name in names if name not in self._imports]
            self._imports += new
            if new and self._control is not None:
                self._send_imports(self._control, new)

    def fork(self, name: str, files: Sequence[int]) -> int:
        """Forks a node, which becomes a child of this process.

        Args:
          name: "label/index" of the node.
          files: Descriptors: its control channel, its memory file, its stdout and its stderr.

        Returns:
          The process id.

        Raises:
          ForkError: it was not forked, and must be started in another way.
        """
        with self._request:
            control = self._connect()
            try:
                control.send(fork_requests.CHECK)
                answer = control.recv(fork_requests.MESSAGE_BYTES)
                if answer and answer != fork_requests.FREE:
                    self._give_up(answer.decode())
                    raise ForkError(answer.decode())
                with _adopting_orphans():
                    socket.send_fds(control, [fork_requests.FORK + b" " + name.encode()], files)
                    answer = control.recv(fork_requests.MESSAGE_BYTES)
            except OSError as error:
                self._kill()
                answer = str(error).encode()
            if not answer.isdigit():
                self._disconnect(control)
                raise ForkError(answer.decode() or "the fork server has ended")
            self._num_unproven = 0
            return int(answer)

    def close(self) -> None:
        """Ends the server, and waits until it is gone; the nodes keep running."""
        process = self._process
        self._end("the fork server was closed")
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECS)

    def _run(self) -> None:
        try:
            while not self._trouble:
                self._run_once()
        except Exception as error:  # Otherwise nodes would wait for a server that never starts.
            self._give_up(f"{type(error).__name__}: {error}")

    def _run_once(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_ANSWER_SECS)
        try:
            process = self._start(theirs)
        finally:
            theirs.close()
        with self._changed:
            self._process, self._control = process, ours
            if self._imports:
                self._send_imports(ours, self._imports)
            self._changed.notify_all()
        if self._trouble:
            self._kill()
        status = process.wait()
        with self._changed:
            self._process = None
            # Not closed here: a request that waits for its answer sees the connection end. If the
            # descriptor were closed, its number could be reused, and the request would wait on it.
            self._disconnect(ours)
        if not self._trouble:
            self._count_end(f"the process {output.describe_end(status)}")

    def _count_end(self, end: str) -> None:
        self._num_unproven += 1
        if self._num_unproven < _MOST_UNPROVEN:
            logger.warning("the fork server ended: %s; restarting it", end)
        else:
            self._give_up(f"the fork server ended {self._num_unproven} times: {end}")

    def _start(self, control: socket.socket) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-P",  # The working directory must not precede the launcher's search path.
                "-m",
                "launchpad.engines.fork_server",
                str(control.fileno()),
                str(os.getpid()),
            ],
            env={
                **self._environment,
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": engine.python_path(self._path),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(control.fileno(),),
            start_new_session=True,
        )
        assert process.stdout is not None and process.stderr is not None
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        output.LineCopier(output.prefixed("[fork_server/0] "), streams)
        return process

    def _send_imports(self, control: socket.socket, names: Sequence[str]) -> None:
        imports = fork_requests.Imports(list(names), list(sys.argv), self._path)
        memory = os.memfd_create("launchpad")
        try:
            with os.fdopen(memory, "wb", closefd=False) as file:
                file.write(pickle.dumps(imports))
            os.lseek(memory, 0, os.SEEK_SET)
            with contextlib.suppress(OSError):  # It has died; its successor gets all names.
                socket.send_fds(control, [fork_requests.IMPORT], [memory])
        finally:
            os.close(memory)

    def _connect(self) -> socket.socket:
        with self._changed:
            self._changed.wait_for(lambda: self._control or self._trouble, _ANSWER_SECS)
            if self._control is None:
                raise ForkError(self._trouble or "the fork server does not start")
            return self._control

    def _disconnect(self, control: socket.socket) -> None:
        with self._changed:
            if self._control is control:
                self._control = None

    def _give_up(self, trouble: str) -> None:
        if not self._trouble:
            logger.warning("nodes are not forked, they start more slowly: %s", trouble)
        self._end(trouble)

    def _end(self, trouble: str) -> None:
        with self._changed:
            self._trouble = self._trouble or trouble
            self._changed.notify_all()
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()


@contextlib.contextmanager
def _adopting_orphans() -> Iterator[None]:
    """Makes this process adopt its descendants whose parents end within this block."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int()
    prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k not in RUN_TIME_VARIABLES}


_lock = threading.Lock()
_server: ForkServer | None = None


def preload(*names: str) -> None:
    """Starts to import modules in the process that nodes are forked from; returns immediately.

    Call it before `launch`, for nodes that run as processes of this machine, if it is known what
    they import: the imports then run in parallel with the launcher's own work. Modules that
    `launch` itself detects are imported anyway. The modules must start no threads and must not
    initialise TensorFlow, OpenGL or a GPU when they are imported.

    Args:
      *names: Names of modules. Errors of their imports are left to the nodes.
    """
    current().preload(names)


def current() -> ForkServer:
    """Returns the fork server for what is launched now; starts one if necessary."""
    global _server
    with _lock:
        if _server is None or not _server.is_current:
            if _server is not None:
                _server.close()
            else:
                atexit.register(_close)
            _server = ForkServer()
        return _server


def _close() -> None:
    global _server
    with _lock:
        if _server is not None:
            _server.close()
        _server = None


def _forget() -> None:
    """Forgets the parent's server in a fork: its nodes become children of the parent."""
    global _server, _lock
    _lock = threading.Lock()
    if _server is not None:
        atexit.unregister(_close)
    _server = None


os.register_at_fork(after_in_child=_forget)
