"""The nodes of a run: counter, actor, learner, evaluator (the replay node is Launchpad's)."""
