"""Programs of several processes: who they are, how they start, how they start again."""
