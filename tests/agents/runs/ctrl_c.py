"""A listener that stops its run."""

import os
import signal

from rl_replicator.runs.run import RunListener


class CtrlC(RunListener):
    """Sends Ctrl-C after the first evaluation."""

    is_sent = False

    def evaluated(self, figures):
        if not self.is_sent:  # A second Ctrl-C ends the process immediately.
            self.is_sent = True
            os.kill(os.getpid(), signal.SIGINT)
