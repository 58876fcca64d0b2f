"""Numbers of a training loop by name, every 40 steps: printed here, and written to
TensorBoard with ``to=SummaryWriter().add_scalar``."""

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


def show(name: str, value: float, step: int) -> None:
    if value:
        print(f"{step:4}  {name:40} {value:8.3f}")


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())

    def train_step() -> None:
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()

    hook = torchprof_hooks.ReportHook(every_steps=40, to=show)
    with torchprof_hooks.TrainingSession([hook]) as session:
        for _ in range(40):
            session.run(train_step)


if __name__ == "__main__":
    main()
