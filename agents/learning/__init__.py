"""The learning end of an agent: the replicated learner and its variables."""
