"""The plan of a run: what its nodes need to know besides the agent."""
