"""Networks that agents share: encoders of frames, and augmentation."""
