"""The replicators: on one device, several devices, several processes, a mesh, or TPU cores."""
