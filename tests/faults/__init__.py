"""Kills, full disks and interrupts at every write of a command. Moments are counted, not timed:
the same ones whatever the load. ``make faults`` tries all, the tests some."""
