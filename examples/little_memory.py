"""Train the language model of char_lm.py, a larger one, in as little memory as you say.

    python -m torchprof_hooks --memory --full examples/little_memory.py --memory 400

It runs out of memory, is told what fills it, and fits with ``--checkpoint``.
"""

import argparse
import ctypes
import resource
from pathlib import Path

import torch
import torch.nn.functional as F
from char_lm import CharLM, Config, Vocabulary, random_batch, read_corpus
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

#: Of the C library: blocks from this size on go back to the system when they are freed.
M_MMAP_THRESHOLD = -3


class Checkpointed(nn.Module):
    """A block whose forward is computed again in backward, so that nothing in it has to
    be kept until then."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.block, x, use_reentrant=False)
        return out


def leave_memory(megabytes: int) -> None:
    """Let the process have so much more than it has now (on Linux)."""
    torch.randn(1000, 1000).mm(torch.randn(1000, 1000))  # starts torch's threads
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # else much is kept when freed
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    data_kilobytes = int(status.split("VmData:")[1].split()[0])
    most = 1024 * data_kilobytes + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32, help="default: 32")
    parser.add_argument("--steps", type=int, default=4, help="default: 4")
    parser.add_argument("--memory", type=int, help="megabytes that it may take")
    parser.add_argument(
        "--checkpoint", action="store_true", help="keep nothing inside of blocks"
    )
    args = parser.parse_args()
    config = Config(context=128, blocks=8, batch_size=args.batch_size)
    torch.manual_seed(config.seed)
    corpus = read_corpus()
    vocabulary = Vocabulary(corpus)
    ids = vocabulary.encode(corpus)
    model = CharLM(config, len(vocabulary))
    if args.checkpoint:
        model.blocks = nn.Sequential(*map(Checkpointed, model.blocks))
    optimizer = torch.optim.AdamW(model.parameters())
    if args.memory is not None:
        leave_memory(args.memory)
    try:
        for _ in range(args.steps):
            inputs, targets = random_batch(ids, config)
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    finally:  # what is left of memory may be too little for anything else
        most = resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    print(f"loss {loss.item():.2f}")


if __name__ == "__main__":
    main()
