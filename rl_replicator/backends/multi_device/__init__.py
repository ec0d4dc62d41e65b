"""Several replicas in one process, on devices of this machine."""
