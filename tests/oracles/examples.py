"""The reference of clipping: a plain loop over examples with ordinary autograd."""

import copy

import torch
from torch.utils._pytree import tree_leaves, tree_map


def _outputs(model, inputs):
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def gradients(model, loss, inputs, targets):
    """Return the gradient of each example as a row, in float64."""
    model = copy.deepcopy(model).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(tree_leaves(targets)[0])):
        model.zero_grad()
        one, target = tree_map(lambda t, i=i: t[i : i + 1], (inputs, targets))
        loss(_outputs(model, one), target).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in trained]
        rows.append(torch.cat([part.reshape(-1).double() for part in parts]))
    return torch.stack(rows)


def whitened(rows, scale=None, shift=None):
    """Return gradients in a geometry."""
    rows = rows if shift is None else rows - shift.double()
    return rows if scale is None else rows / scale.double()


def clipped(rows, clip):
    """Return the sum of clipped rows; rows that are not finite count as zero."""
    total = torch.zeros_like(rows[0])
    for row in rows:
        norm = float(torch.sqrt((row**2).sum()))
        if norm == norm and norm != float("inf"):
            total += row * min(1.0, clip / norm) if norm > 0 else 0
    return total


def clipped_sum(model, loss, inputs, targets, clip, scale=None, shift=None):
    """Return the sum of the whitened, clipped gradients, one example at a time."""
    return clipped(whitened(gradients(model, loss, inputs, targets), scale, shift), clip)
