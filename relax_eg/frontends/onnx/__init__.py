"""ONNX models read to modules, what they compute of shapes while they are read."""
