"""Which functions see a NaN? A hook of one's own in ten lines."""

from collections import Counter

import torch
from torch import Tensor, nn

import torchprof_hooks


class CountNaNs(torchprof_hooks.FunctionHook):
    name = "CountNaNs"

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def forward_postprocess(self, function, in_data):  # type: ignore[no-untyped-def]
        if any(x is not None and x.isnan().any() for x in in_data):
            self.seen[f"{function.module_path}: {function.label}"] += 1


class Distance(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.pow(2).sum(-1) - 2).sqrt()  # negative where x is small


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Distance(), nn.Softplus())
    with CountNaNs() as hook:
        for _ in range(100):
            model(torch.randn(4, 8)).mean()
    for function, times in hook.seen.items():
        print(f"{times:4} times  {function}")


if __name__ == "__main__":
    main()
