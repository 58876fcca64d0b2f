"""Numbers of a training loop by name, every 40 steps: printed here, where a
``SummaryWriter().add_scalar(name, value, step)`` would write them to TensorBoard."""

import torch
from torch import Tensor, nn

import torchprof_hooks


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(self.blocks(x))
        return result


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()

    last = None
    with torchprof_hooks.profile() as prof:
        for step in range(1, 41):
            train_step()
            if step % 40 == 0:
                now = prof.profile
                for name, value in now.scalars(since=last).items():
                    if value:
                        print(f"{step:4}  {name:40} {value:8.3f}")
                last = now


if __name__ == "__main__":
    main()
