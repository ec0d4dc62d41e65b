"""The replay table and both of its ends."""
