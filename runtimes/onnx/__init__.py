"""Models that ONNX Runtime executes: how they are written, checked and run. Running needs no torch."""
