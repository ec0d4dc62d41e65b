"""A training run in which one worker is killed once, for test_multi_worker.py.

    python -m rl_replicator.jobs --workers 2 -- python -m ...restarted_program DIR

Writes DIR/killed and DIR/resumed, each with the time of the event, and DIR/weights, the final
weights.
"""

import json
import os
import pathlib
import signal
import sys
import time

import rl_replicator as rr
from rl_replicator import checkpoints
from rl_replicator.checkpoints import parts
from tests.conformance import multi_worker_program, regression

STEPS_PER_CALL = 5
LAST_STEP = 20
KILLED_AT = 10


def main():
    folder = pathlib.Path(sys.argv[1])
    replicator = rr.make("multi_worker")
    model, optimizer, step_fn = multi_worker_program.make_learner(replicator)
    regression.set_weights(model)
    inputs = replicator.make_inputs(multi_worker_program.batches)
    step = replicator.replicate(step_fn, inputs, STEPS_PER_CALL)
    learner = {
        "learner": parts.TrackablePart(model=model, optimizer=optimizer),
        "input": parts.InputPart(inputs),
    }
    checkpointer = checkpoints.Checkpointer(folder / "checkpoints")
    resumed = checkpointer.latest()
    if resumed is not None:
        checkpointer.restore(learner)
        assert inputs.position == KILLED_AT
    while inputs.position < LAST_STEP:
        step()
        if resumed is not None and replicator.is_chief and inputs.position == 15:
            (folder / "resumed").write_text(str(time.time()))
        if replicator.is_chief:
            checkpointer.save(inputs.position, learner)
        replicator.reduce("mean", 0.0)  # All wait until the checkpoint is written.
        if resumed is None and inputs.position == KILLED_AT and not replicator.is_chief:
            (folder / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
    if replicator.is_chief:
        weights = [v.numpy().tolist() for v in model.trainable_variables]
        (folder / "weights").write_text(json.dumps(weights))


if __name__ == "__main__":
    main()
