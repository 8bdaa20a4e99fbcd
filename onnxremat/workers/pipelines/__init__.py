"""Which rank computes what of a pipeline, and when?"""
