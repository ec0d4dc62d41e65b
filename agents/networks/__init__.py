"""Networks that agents share: encoders, policies and critics."""
