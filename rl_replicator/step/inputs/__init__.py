"""The inputs of a replicated step: one element for every replica in every step."""
