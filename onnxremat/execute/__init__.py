"""How do several sessions run as one model? Partitions on devices: streams, copies, bytes."""
