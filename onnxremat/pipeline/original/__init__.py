"""What is the model that came: read, run by itself, and what onnxruntime makes of it?"""
