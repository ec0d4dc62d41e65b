"""Remote calls: gRPC carrying pickles, for the programs of one user."""
