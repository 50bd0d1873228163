"""From a planned model to C that runs at its addresses: kernels by emx-onnx-cgen, calls as a table, proved by running it."""
