"""An accelerator that is not CUDA: a device that takes planted time."""
