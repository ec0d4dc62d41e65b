"""Recorded episodes: played by the policy of a run, kept as Minari datasets."""
