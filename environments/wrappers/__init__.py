"""What can be put around any environment: a user's own wrapper, and a limit of its time."""
