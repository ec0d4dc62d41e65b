"""`rl-replicator plan`: how fast a run would be on other machines, and what would limit it."""
