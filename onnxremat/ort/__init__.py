"""Everything that talks to onnxruntime: options, shape inference, offline optimisation, profiles.

No other package imports onnxruntime.
"""
