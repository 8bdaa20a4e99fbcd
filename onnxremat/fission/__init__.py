"""Which regions of a graph are computed part by part, and the graph that does so?"""
