"""The search over several devices."""
