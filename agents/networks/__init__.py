"""Networks that agents share: encoders, policies, critics, and augmentation of frames."""
