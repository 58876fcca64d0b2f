"""A graph network of torch_geometric's, on a random graph."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCNConv(64, 64), GATConv(64, 7, heads=2, concat=False)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.first(x, edges).relu(), training=self.training)
        result: torch.Tensor = self.second(hidden, edges)
        return result


x, edges = torch.randn(2000, 64), torch.randint(0, 2000, (2, 12000))
labels = torch.randint(0, 7, (2000,))
model = Net()
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(60):
    model.train()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x, edges), labels)
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(x, edges).argmax(-1) == labels).float().mean()
    print(epoch, repr(loss.item()), repr(right.item()))
