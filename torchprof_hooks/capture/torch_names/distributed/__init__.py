"""Private names of ``torch.distributed``."""
