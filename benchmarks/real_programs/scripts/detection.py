"""A detector of torchvision's: losses in a dict, another number of boxes each step."""

from __future__ import annotations

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

torch.manual_seed(0)
model = fasterrcnn_mobilenet_v3_large_320_fpn(
    weights=None, weights_backbone=None, num_classes=5
)
optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
for step in range(6):
    pictures = [torch.rand(3, 160, 200), torch.rand(3, 200, 160)]
    targets = []
    for _ in pictures:
        corners = torch.rand(step + 1, 2) * 80
        boxes = torch.cat([corners, corners + 10 + torch.rand(step + 1, 2) * 60], 1)
        labels = torch.randint(1, 5, (step + 1,))
        targets.append({"boxes": boxes, "labels": labels})
    losses = model(pictures, targets)
    loss = sum(losses.values())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print({name: repr(value.item()) for name, value in losses.items()})
model.eval()
with torch.no_grad():
    print([len(found["boxes"]) for found in model([torch.rand(3, 160, 200)])])
