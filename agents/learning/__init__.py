"""The replicated learner, and what the steps of agents share."""
