"""Jobs of several processes: their addresses, their start, and their restart after a failure."""
