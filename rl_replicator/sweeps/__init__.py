"""Searches for good settings: `rl-replicator sweep NAME --search "option=expression"`."""
