"""Where a step runs: one device, several devices, several processes, a mesh, or TPU cores."""
