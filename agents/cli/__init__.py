"""Parts of the command line that need environments; see the entry points in pyproject.toml."""
