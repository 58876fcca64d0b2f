"""torch's own code for CUDA, on a runtime without a device: `make test-cuda`."""
