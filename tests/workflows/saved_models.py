"""Models in folders as training leaves them, of any schema, without training."""

import torch

from privada import tables
from privada.models import Architecture, save


def saved(folder, schema, *, hidden=(), seed=0, kind=None, **facts):
    """Write a model with random weights and its schema; return the module."""
    folder.mkdir(exist_ok=True)
    target = schema.target
    classes = list(target.classes) if isinstance(target, tables.Classes) else None
    outputs = 1 if classes is None else len(classes)
    kind = kind or ("mlp" if hidden else "linear")
    architecture = Architecture(kind, len(schema.features), outputs, hidden)
    model = architecture.build()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    known = {"task": schema.task, "classes": classes, "features": list(schema.features)}
    save(folder, model, architecture, **{**known, **facts})
    schema.write(folder / "schema.toml")
    return model.eval()
