"""Networks in ONNX files as torch modules: `read`; the operators that are known: `layers` and `shapes`."""
