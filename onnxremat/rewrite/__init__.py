"""Which ONNX model carries out a plan? Duplicates, gates, pins, partitions."""
