"""The nodes of a run: counter, actor, learner and evaluator. The replay node is Launchpad's."""
