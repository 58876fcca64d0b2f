"""A classifier of timm's, with its optimizer and schedule."""

from __future__ import annotations

import timm
import torch
from timm.optim import create_optimizer_v2
from torch.nn import functional as F

torch.manual_seed(0)
for name in ("resnet18", "vit_tiny_patch16_224"):
    model = timm.create_model(name, num_classes=10)
    optimizer = create_optimizer_v2(model, "lamb", lr=1e-3)
    for _ in range(6):
        pictures, labels = torch.randn(4, 3, 224, 224), torch.randint(0, 10, (4,))
        loss = F.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(repr(loss.item()))
