"""The one way from the first trial of an experiment to its results."""

from rl_replicator.errors import continuable
from rl_replicator.experiments.experiment import Experiment
from rl_replicator.experiments.live_table import LiveTable
from rl_replicator.experiments.trial import Trial
from rl_replicator.runs.run_directory import RunDirectory


def run(experiment: Experiment) -> int:
    """Runs the trials that have not ended, and writes the results of all.

    Args:
      experiment: what to run.

    Returns:
      The exit status: that of `Experiment.conclude`, or 128 + signal if a signal ended it.

    Raises:
      DiskError: if the disk is full.
      UsageError: if the directory holds other settings or other files, there is no such cluster, or
        the results cannot be written at the end.
    """
    # Imported here, because Ray takes seconds.
    from rl_replicator.experiments import tuning

    directory, kind = RunDirectory(experiment.run_dir), experiment.kind
    with (
        directory.opened(kind, experiment.identity, experiment.free),
        continuable(f"the {kind} in {experiment.run_dir}"),
    ):
        directory.describe(kind, experiment.identity, experiment.settings)
        trials = experiment.begun()
        table = LiveTable(lambda: experiment.text(trials))

        def note(one: Trial) -> None:
            if line := experiment.noted(trials, one):
                table.note(line)

        number = tuning.run(experiment, trials, note, table.refresh)
        table.close()
        status = experiment.conclude(trials, number is not None)
        if number is not None:
            print(f"stopped; the same command continues the {kind}", flush=True)
            return 128 + number
        return status
