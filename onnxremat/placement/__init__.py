"""Which device runs which op, for the largest throughput of a pipeline or the least latency.

See ``docs/placement.md`` for the problem, its charges and the proofs.
"""
