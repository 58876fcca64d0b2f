"""Train a compiled model, whose blocks may look at their output in Python: each look
breaks the graph that torch.compile makes of the model."""

import argparse
from collections import deque

import torch
from torch import Tensor, nn

largest: deque[float] = deque(maxlen=100)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def look_at(x: Tensor) -> None:
    """Note how large it became: this cannot be compiled."""
    largest.append(x.max().item())


class Block(nn.Module):
    def __init__(self, width: int, looks: bool) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * width)
        self.gelu, self.down = nn.GELU(), nn.Linear(2 * width, width)
        self.looks = looks

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.down(self.gelu(self.up(self.norm(x))))
        if self.looks:
            look_at(x)
        return x


class Net(nn.Module):
    def __init__(self, blocks: int, looks: bool, width: int = 64) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, looks) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--look", action="store_true", help="look at each output")
    parser.add_argument("--blocks", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Net(args.blocks, args.look)
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(args.steps):
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
