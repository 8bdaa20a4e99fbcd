"""What can be done, as scripts that run: ``python -m examples.small_gpt --small``."""
