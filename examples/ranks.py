"""Train the demo's language model with four processes, one of which is slowed on
purpose, and see which it is, and where.

Run it with ``make demo-ranks``, or with torchrun. At its end rank 0 prints the report.
"""

import argparse
import tempfile
import time
from typing import Any

import torch
from char_lm import CharLM, Config, Vocabulary, batch_loss, read_corpus
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import torchprof_hooks


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--slow-rank", type=int, default=2, help="-1: none")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds per step")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--save", help="profiles of the ranks (default: not kept)")
    return parser.parse_args()


def slow_down(model: CharLM, seconds: float) -> None:
    """Have one of the layers wait in each forward, as a bad disk or core would."""

    def wait(*_: Any) -> None:
        time.sleep(seconds)

    block: Any = model.blocks[2]
    block.mlp.register_forward_pre_hook(wait)


def main() -> None:
    args = parse_args()
    is_cuda = args.device == "cuda"  # a GPU for each
    distributed.init_process_group("nccl" if is_cuda else "gloo")
    rank = distributed.get_rank()
    device = torch.device("cuda", rank) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = Config(context=32, width=64, batch_size=8)
    text = read_corpus()[:500_000]
    vocabulary = Vocabulary(text)
    ids = vocabulary.encode(text).to(device)
    model = CharLM(config, len(vocabulary)).to(device)
    if rank == args.slow_rank:
        slow_down(model, args.delay)
    parallel: Any = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters())
    torch.manual_seed(rank)  # each has data of its own

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = batch_loss(parallel, ids, config)
        loss.backward()
        optimizer.step()

    step()  # much is done for the first time
    with torchprof_hooks.profile(save=args.save or shared_file()):
        for _ in range(args.steps):
            step()
    distributed.destroy_process_group()


def shared_file() -> str:
    """A file for the profiles in a new folder, the same for all ranks."""
    name = [f"{tempfile.mkdtemp()}/profile.json" if not distributed.get_rank() else ""]
    distributed.broadcast_object_list(name)
    return name[0]


if __name__ == "__main__":
    main()
