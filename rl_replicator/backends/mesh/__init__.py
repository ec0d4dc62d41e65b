"""One program on a mesh of devices, each variable split as its layout says (DTensor)."""
