"""The reference of clipping: a plain loop over examples with ordinary autograd."""

import copy

import torch


def clipped_sum(model, loss, inputs, targets, clip, scale=None, shift=None):
    """Return the sum of the whitened, clipped gradients, one example at a time."""
    model = copy.deepcopy(model).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in trained), dtype=torch.float64)
    for i in range(len(targets)):
        model.zero_grad()
        loss(model(inputs[i : i + 1]), targets[i : i + 1]).backward()
        gradient = torch.cat(
            [
                (torch.zeros_like(p) if p.grad is None else p.grad.to_dense()).reshape(-1).double()
                for p in trained
            ]
        )
        if shift is not None:
            gradient = gradient - shift.double()
        if scale is not None:
            gradient = gradient / scale.double()
        norm = float(torch.sqrt((gradient**2).sum()))
        if norm == norm and norm != float("inf"):
            total += gradient * min(1.0, clip / norm) if norm > 0 else 0
    return total
