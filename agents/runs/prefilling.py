"""`train --prefill DATASET`: a new run starts with recorded episodes in its replay."""

from agents.agent import Agent
from agents.datasets import prefill
from agents.datasets.reading import EpisodeDataset, open_dataset
from agents.runs.options import AgentOptions
from rl_replicator.checkpoints import Checkpointer
from rl_replicator.runs.run_directory import RunDirectory


class Prefilling:
    """The episodes with which a run starts, if it starts with any.

    A run that has a checkpoint needs none: the replay is in it.
    """

    def __init__(self, options: AgentOptions, run: RunDirectory):
        """Reads and checks the dataset of a run that needs it.

        Args:
          options: the options of the run.
          run: the run.

        Raises:
          UsageError: if there is no such dataset, or it does not fit the environment.
        """
        self._options = options
        self._run = run
        self._dataset: EpisodeDataset | None = None
        # The newest checkpoint may be damaged, which is handled later, under the run's lock.
        if options.prefill is not None and Checkpointer(run.checkpoints).is_empty:
            self._dataset = open_dataset(options.prefill, options.task)
            self._summary = self._dataset.check()

    def fill(self, agent: Agent, num_replicas: int) -> None:
        """Writes the tables with which the replay servers start, and prints a line.

        To be called only for a run without a checkpoint.

        Args:
          agent: the agent.
          num_replicas: the number of the learner's replicas.

        Raises:
          UsageError: see `agents.datasets.prefill.fill`.
        """
        if self._options.prefill is None:
            return
        assert self._dataset is not None, "the checkpoints were deleted while the run started"
        shards = self._options.replay_shards
        held = prefill.fill(agent, self._dataset, num_replicas, shards, self._run.path)
        print(f"prefill {self._dataset.name}: {self._summary}; {held:,} transitions", flush=True)

    def close(self) -> None:
        """Deletes the tables once there is a checkpoint."""
        if not Checkpointer(self._run.checkpoints).is_empty:
            prefill.discard(self._run.path)
