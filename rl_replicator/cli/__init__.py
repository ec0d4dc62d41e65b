"""The command line `rl-replicator`. Each module is one subcommand; `main` imports only the one
asked for."""
