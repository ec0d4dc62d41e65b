"""The command line `rl-replicator`. Each module is one subcommand; `main` imports only the
requested one."""
