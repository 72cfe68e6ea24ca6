"""Converts ONNX models to modules. Computations on shapes are done during the conversion."""
