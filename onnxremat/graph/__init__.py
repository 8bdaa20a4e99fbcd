"""What is computed? Ops, tensors and their bytes; ONNX files in and out."""
