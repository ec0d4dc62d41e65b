"""One replica on a mesh of devices: variables are sharded by layouts (DTensor)."""
