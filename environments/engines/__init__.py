"""What steps several environments of one task: each by itself, or a pool of EnvPool."""
