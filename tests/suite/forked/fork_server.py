"""Server that forks itself into the programs that clients request.

The module is imported, not run, by an interpreter whose `__main__` is otherwise empty, because the
programs take `__main__` over.

The server has imported third-party packages, and runs no operation of TensorFlow: that would start
threads, which do not survive a fork. It ends when its standard input is closed, and so do its
programs.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile

# Slow to import. Nothing of this project, so that each program imports all of it itself.
PRELOADED = (
    *("numpy", "tensorflow", "tensorflow.python.distribute.distribute_lib", "sonnet", "tree"),
    *("grpc", "reverb", "dm_env", "acme", "acme.specs", "acme.types", "acme.adders.base"),
    *("tyro", "pydantic", "tensorboardX"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg"),
)
_NUMBER = 8  # Bytes per number in messages, as in client.py.
_PR_SET_PDEATHSIG = 1


class Server:
    """Accepts clients, forks a program for each, and sends each client its program's wait status.

    The directory of the socket has a symbolic link for each client: its name is the client's
    process id, its target the program's.
    """

    def __init__(self, address: str):
        """Listens immediately; clients wait until `run` is called.

        Args:
          address: path of the socket.
        """
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._directory = os.path.dirname(address)
        self._clients: dict[int, socket.socket] = {}  # Process id -> connection.
        self._selector = selectors.DefaultSelector()

    def run(self) -> tuple[list[str], str, dict[str, str], list[int]] | None:
        """Serves until standard input ends.

        Returns:
          None at the end; in a fork, its program's arguments, directory, environment and streams.
        """
        # The end of a child wakes the selector.
        wake, waker = socket.socketpair()
        for end in (wake, waker):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        for source in (self._listener, wake):
            self._selector.register(source, selectors.EVENT_READ)
        self._selector.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    return None
                if key.fileobj is wake:
                    with contextlib.suppress(BlockingIOError):
                        wake.recv(4096)
                elif key.fileobj is self._listener:
                    job = self._accept()
                    if job is not None:
                        self._become_program([wake, waker])
                        return job
                else:
                    self._lose(key.fileobj)
            self._collect()

    def _accept(self) -> tuple[list[str], str, dict[str, str], list[int]] | None:
        """Forks the program that a client requests.

        Returns:
          None in the server; in the fork, the same as `run`.
        """
        connection, _ = self._listener.accept()
        length, streams, _, _ = socket.recv_fds(connection, _NUMBER, 3)
        message = b""
        while len(message) < int.from_bytes(length, "big"):
            if not (more := connection.recv(1 << 16)):
                break  # The client was killed meanwhile.
            message += more
        job = None
        if len(streams) == 3 and message and len(message) == int.from_bytes(length, "big"):
            arguments, directory, environment = eval(message)  # From `repr` in client.py.
            server = os.getpid()
            pid = os.fork()
            if pid == 0:
                os.setsid()
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != server:
                    os._exit(1)
                connection.close()
                return arguments, directory, environment, streams
            self._clients[pid] = connection
            client = _process_id(connection)
            with contextlib.suppress(FileNotFoundError):  # Left by a client with the same id.
                os.unlink(os.path.join(self._directory, client))
            os.symlink(str(pid), os.path.join(self._directory, client))
            self._selector.register(connection, selectors.EVENT_READ)
            self._send(connection, pid)
        else:
            connection.close()
        for stream in streams:
            os.close(stream)
        return job

    def _become_program(self, sockets: list[socket.socket]) -> None:
        """Releases the server's resources in a fork."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (*sockets, self._listener, *self._clients.values()):
            each.close()

    def _lose(self, connection: object) -> None:
        """Kills the program of a client that was killed, and all processes in its group."""
        assert isinstance(connection, socket.socket)
        self._selector.unregister(connection)
        for pid, other in self._clients.items():
            if other is connection:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def _collect(self) -> None:
        """Sends their programs' wait statuses to the clients whose programs have ended."""
        while self._clients:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            connection = self._clients.pop(pid)
            with contextlib.suppress(KeyError):
                self._selector.unregister(connection)
            self._send(connection, status)
            connection.close()

    def _send(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # The client was killed.
            connection.sendall(number.to_bytes(_NUMBER, "big"))


def _process_id(connection: socket.socket) -> str:
    """Returns the process id at the other end of a connection."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return str(int.from_bytes(credentials[:4], sys.byteorder))


def become(
    arguments: list[str], directory: str, environment: dict[str, str], streams: list[int]
) -> None:
    """Puts this process in the state of a newly started interpreter, and runs the program."""
    for fd, stream in enumerate(streams):
        os.dup2(stream, fd)
        os.close(stream)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    _open_streams("PYTHONUNBUFFERED" in environment)
    # NumPy's generator was seeded at the import, so its state is the same in all forks.
    sys.modules["numpy"].random.seed(random.SystemRandom().getrandbits(32))
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = map(os.path.abspath, paths)
    kind, *rest = arguments
    if kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), _new_main())
    elif kind == "-m":
        sys.argv = ["-m", *rest[1:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(rest[0])
    else:
        sys.argv = [kind, *rest]
        sys.path.insert(0, os.path.dirname(os.path.realpath(kind)))
        path = os.path.abspath(kind)
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        exec(code, _new_main(__file__=path))


def _new_main(**names: object) -> dict[str, object]:
    """Returns the namespace of `__main__`, without the names that started the server."""
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
        del main[name]
    main.update(names)
    return main


def _open_streams(unbuffered: bool) -> None:
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        binary = open(  # noqa: SIM115 - open until the program ends.
            fd, mode + "b", buffering=0 if unbuffered and mode == "w" else -1, closefd=False
        )
        stream = io.TextIOWrapper(
            binary,
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr" or (mode == "w" and os.isatty(fd)),
            write_through=unbuffered and mode == "w",
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main(address: str) -> None:
    """Runs a server, and in each fork a program."""
    sys.path.remove(os.path.dirname(__file__))
    server = Server(address)
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    gc.disable()  # Imports create many objects and little garbage.
    for name in PRELOADED:
        importlib.import_module(name)
    tempfile.tempdir = None  # Each program determines its own.
    gc.enable()
    gc.collect()
    gc.freeze()  # Collections in the forks neither visit nor copy these objects.
    gc.set_threshold(50_000, 20, 20)  # Traces create many objects and little garbage.
    job = server.run()
    if job is not None:
        become(*job)
