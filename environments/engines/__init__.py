"""Steps several environments of one task: one after the other, or in an EnvPool pool."""
