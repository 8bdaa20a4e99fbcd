"""Which devices and links has a machine? Detection and machine files."""
