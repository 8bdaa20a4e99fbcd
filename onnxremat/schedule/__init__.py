"""What does a plan mean? Steps, their bytes by onnxruntime's rules, their file format."""
