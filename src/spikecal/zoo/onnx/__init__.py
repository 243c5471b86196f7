"""Networks in ONNX files as torch modules: `read` reads them; `layers` and `shapes` hold the known operators."""
