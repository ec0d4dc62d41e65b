"""`python -m rl_replicator.jobs`: starts a program's processes, and starts them again."""

import sys

from rl_replicator.jobs.supervisor import main

if __name__ == "__main__":
    sys.exit(main())
