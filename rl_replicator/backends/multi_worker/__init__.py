"""One process per worker, in step with each other (collectives between processes)."""
