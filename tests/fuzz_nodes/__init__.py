"""Random nodes: every operator that onnxremat has rules or facts of, with drawn attributes,
shapes, element types, optional inputs and opsets, judged by onnxruntime (``make fuzz-nodes``)."""
