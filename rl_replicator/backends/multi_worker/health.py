"""Detects processes of a group that died, froze, restarted, or never started.

TensorFlow's own mechanisms are not used. Its coordination service runs in one of the workers, waits
an hour for a worker that never starts, and reports a loss without naming the worker. Its older
health check retries only every 30 seconds.
"""

import enum
import threading
import time
from collections.abc import Callable, Mapping

from rl_replicator import errors

# A worker counts as dead if it refuses two connections in a row. This detects a death within about
# a second.
_INTERVAL = 0.3
_REFUSALS = 2
# If every peer answers in this many sweeps after an error, the error was not caused by a loss.
_SWEEPS_WITHOUT_LOSS = 10
# If more time passes between two readings of the monitor's clock, this process was not running.
_LONGEST_STEP = 2 * _INTERVAL


class Answer(enum.Enum):
    """The result of probing a process."""

    ALIVE = "alive"
    UNREACHABLE = "unreachable"
    SILENT = "silent"
    RESTARTED = "restarted"


class Monitor:
    """Probes all peers in turn, in a thread that runs from `wait_for_all` to `stop`."""

    def __init__(
        self,
        peers: Mapping[int, str],
        probe: Callable[[int], Answer],
        peer_timeout: float,
        on_loss: Callable[[errors.WorkerLost], None],
    ):
        """Probes no peer yet.

        Args:
          peers: addresses of the peers, by index.
          probe: probes a peer, within a fraction of a second.
          peer_timeout: seconds without an answer after which a peer counts as frozen.
          on_loss: called once, in the monitor's thread, when a peer is lost.
        """
        self._peers = peers
        self._probe = probe
        self._peer_timeout = peer_timeout
        self._on_loss = on_loss
        self._refusals = dict.fromkeys(peers, 0)
        self._silent_since: dict[int, float] = {}
        self._num_good_sweeps = 0
        self._awake, self._looked_at = 0.0, time.monotonic()
        self._stopped = threading.Event()
        self._found = threading.Event()
        self._loss: errors.WorkerLost | None = None
        self._thread = threading.Thread(target=self._run, name="peer-health", daemon=True)

    def wait_for_all(self, timeout: float) -> None:
        """Waits until every peer has answered, and then starts to watch them.

        Args:
          timeout: seconds to wait.

        Raises:
          WorkerLost: if peers did not answer in time; names them.
        """
        deadline = time.monotonic() + timeout
        missing = set(self._peers)
        while missing:
            missing -= {i for i in missing if self._probe(i) is Answer.ALIVE}
            if missing and time.monotonic() > deadline:
                raise errors.WorkerLost(
                    f"expected all workers to start, but {self._names(missing)} did not within "
                    f"{timeout:g} s; start all of them together, or give a longer start_timeout",
                    tuple(sorted(missing)),
                )
            if missing:
                time.sleep(_INTERVAL)
        self._thread.start()

    def loss(self, patience: float = 0.0) -> errors.WorkerLost | None:
        """Returns the error that names the lost peers; None if no peer is lost.

        Args:
          patience: seconds to wait for a loss; the wait ends earlier once all peers have answered
            several times.
        """
        deadline = time.monotonic() + patience
        enough = self._num_good_sweeps + _SWEEPS_WITHOUT_LOSS
        while not self._found.wait(min(_INTERVAL, max(0.0, deadline - time.monotonic()))):
            is_known = self._num_good_sweeps >= enough or self._stopped.is_set()
            if is_known or time.monotonic() >= deadline:
                break
        return self._loss

    def stop(self) -> None:
        """Stops probing. May be called again."""
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stopped.wait(_INTERVAL):
            lost = self._sweep()
            if not lost:
                if not (self._silent_since or any(self._refusals.values())):
                    self._num_good_sweeps += 1
                continue
            # Another sweep, so that peers that died together are named together.
            self._stopped.wait(_INTERVAL)
            lost = self._sweep() | lost
            self._loss = _lost({i: (self._peers[i], reason) for i, reason in sorted(lost.items())})
            self._found.set()
            self._on_loss(self._loss)
            return

    def _sweep(self) -> dict[int, str]:
        """Probes every peer once; returns the reasons of losses, by index of the peer."""
        lost = {}
        for index in self._peers:
            answer = self._probe(index)
            now = self._awake_seconds()
            self._refusals[index] = self._refusals[index] + 1 if answer is Answer.UNREACHABLE else 0
            if answer is Answer.SILENT:
                # Measured from the first probe without an answer, not from the last answer.
                self._silent_since.setdefault(index, now)
            else:
                self._silent_since.pop(index, None)
            silent = now - self._silent_since.get(index, now)
            if answer is Answer.RESTARTED:
                lost[index] = "was restarted without the others"
            elif self._refusals[index] >= _REFUSALS:
                lost[index] = "is gone: it was killed, crashed, or its program has ended"
            elif silent >= self._peer_timeout:
                lost[index] = (
                    f"has not answered for {silent:.0f} s: it is frozen, or its machine or the "
                    "network to it is down"
                )
        return lost

    def _awake_seconds(self) -> float:
        """Returns a time that stands still while this process, or its whole machine, is frozen."""
        now = time.monotonic()
        self._awake += min(now - self._looked_at, _LONGEST_STEP)
        self._looked_at = now
        return self._awake

    def _names(self, indices: set[int]) -> str:
        return ", ".join(f"worker {i} ({self._peers[i]})" for i in sorted(indices))


def _lost(reasons: Mapping[int, tuple[str, str]]) -> errors.WorkerLost:
    each = "; ".join(f"worker {i} ({address}) {why}" for i, (address, why) in reasons.items())
    return errors.WorkerLost(
        f"{each}; end the others and restart the whole group from its last checkpoint, as "
        "`python -m rl_replicator.jobs` does",
        tuple(reasons),
    )
