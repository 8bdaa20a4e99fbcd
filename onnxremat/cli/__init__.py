"""The command line: one file per command, options and messages."""
