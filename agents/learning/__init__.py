"""The replicated learner, and the parts that the steps of agents share."""
