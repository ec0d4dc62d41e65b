"""The plan of a run: everything that its nodes need besides the agent."""
