"""A training run of an agent: options, launch, evaluation, and what is restored from it."""
