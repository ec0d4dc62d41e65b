"""`--replicas`: how the learner is shared out over devices and processes."""

import dataclasses

import rl_replicator as rr
from rl_replicator.errors import ConfigError

_GROUP = "multi_worker"


@dataclasses.dataclass(frozen=True)
class Replicas:
    """The learner's replicas.

    Attributes:
      name: of the replicator in every process, see `rl_replicator.make`.
      num_processes: learner processes; more than one form a `MultiWorkerReplicator`.
      num_replicas: over all processes.
      gpus: that each process sees.
    """

    name: str
    num_processes: int
    num_replicas: int
    gpus: int

    @classmethod
    def parse(cls, text: str, launch: str, gpus: int | None) -> "Replicas":
        """Reads what was given on the command line.

        Args:
          text: a number of devices, "multi_worker:N" for N processes, or a string of
            `rl_replicator.make`.
          launch: how the run is launched.
          gpus: that each learner process sees; None to share out those of this machine.

        Raises:
          ConfigError: it is none of these, or does not go with `launch`.
        """
        kind, _, number = text.partition(":")
        if kind != _GROUP:
            if text.isdigit():
                text = "single_device" if int(text) == 1 else f"multi_device:{int(text)}"
            return cls(text, 1, rr.make(text).num_replicas, _count_gpus() if gpus is None else gpus)
        if not number.isdigit() or int(number) < 2:
            raise ConfigError(
                f"--replicas: expected {_GROUP}:N with at least 2 learner processes, got {text!r}"
            )
        if launch == "threads":
            raise ConfigError(
                f"--replicas {text}: expected --launch processes or ray, got threads; a process "
                "can be one worker only"
            )
        if gpus is None:
            gpus = _count_gpus() // int(number)
        return cls(_GROUP, int(number), int(number) * max(1, gpus), gpus)


def _count_gpus() -> int:
    import tensorflow as tf  # Here, so that `--help` does not wait for it.

    return len(tf.config.list_physical_devices("GPU"))
