"""`python -m rl_replicator.jobs`: starts a job's processes, and restarts them after a failure."""

import sys

from rl_replicator.jobs.supervisor import main

if __name__ == "__main__":
    sys.exit(main())
