"""Models that tables are trained with: made from a description, kept in files that all can read."""

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privada.core.errors import ArgumentError, ModelError
from privada.core.validation import integer

KINDS = ("linear", "mlp")
_FORMAT = 1


@dataclass(frozen=True)
class Architecture:
    """What a model is built of.

    Args:
        kind: "linear", "mlp", or "module:factory", a function of (inputs, outputs) that returns a
            torch module.
        inputs, outputs: how many numbers go in and come out.
        hidden: the widths of the hidden layers of an "mlp".

    Edge cases: a linear model begins at zero. Hidden layers are followed by tanh, which keeps
    activations, and so gradients, bounded.

    Example:
        >>> from privada.models import Architecture
        >>> Architecture("mlp", inputs=4, outputs=2, hidden=(8,)).build()
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): Tanh()
          (2): Linear(in_features=8, out_features=2, bias=True)
        )

    Reference: Papernot et al. (2021), Tempered Sigmoid Activations for Deep Learning with
    Differential Privacy, for tanh.
    """

    kind: str
    inputs: int
    outputs: int
    hidden: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS and ":" not in str(self.kind):
            raise ArgumentError(
                f"Expected model to be 'linear', 'mlp' or 'module:factory', got {self.kind!r}."
            )
        integer("inputs", self.inputs)
        integer("outputs", self.outputs)
        for width in self.hidden:
            integer("hidden", width)
        if (self.kind == "mlp") != bool(self.hidden):
            raise ArgumentError(
                f"Expected hidden widths for 'mlp' and for that alone, got model={self.kind!r}, "
                f"hidden={self.hidden!r}."
            )

    def build(self) -> nn.Module:
        """Return a fresh module."""
        if self.kind == "linear":
            model = nn.Linear(self.inputs, self.outputs)
            nn.init.zeros_(model.weight)
            nn.init.zeros_(model.bias)
            return model
        if self.kind == "mlp":
            layers: list[nn.Module] = []
            before = self.inputs
            for width in self.hidden:
                layers += [nn.Linear(before, width), nn.Tanh()]
                before = width
            return nn.Sequential(*layers, nn.Linear(before, self.outputs))
        return self._from_factory()

    def _from_factory(self) -> nn.Module:
        where, _, name = self.kind.partition(":")
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            factory = getattr(importlib.import_module(where), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ArgumentError(
                f"Cannot find the model {self.kind!r}: {error}. Give module:factory, where "
                "the module can be imported from here and the factory is in it."
            ) from error
        try:
            model = factory(self.inputs, self.outputs)
        except Exception as error:
            raise ModelError(
                f"Expected {self.kind!r} to accept (inputs, outputs) = ({self.inputs}, "
                f"{self.outputs}), but it failed with: {error}"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(f"Expected {self.kind!r} to return a torch module, got {type(model)}.")
        return model


def save(folder: Path, model: nn.Module, architecture: Architecture, **facts: Any) -> None:
    """Write model.safetensors, and model.json with what it takes to use it.

    Both can be read without Privada.

    Example:
        >>> import tempfile, torch
        >>> from pathlib import Path
        >>> from privada.models import Architecture, load, save
        >>> linear = Architecture("linear", inputs=3, outputs=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(Path(folder), linear.build(), linear, task="regression")
        ...     model, facts = load(Path(folder))
        >>> model(torch.ones(1, 3)).item(), facts["task"]
        (0.0, 'regression')
    """
    from safetensors.torch import save_file

    weights = folder / "model.safetensors"
    save_file(_apart(model.state_dict()), str(weights))
    weights.chmod(0o644)  # the library makes it readable by its owner alone
    content = {"format": _FORMAT, "architecture": asdict(architecture), **facts}
    (folder / "model.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _apart(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that share no memory, as the format wants them."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in values.items()}


def load(folder: Path) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model that `save` wrote, and the facts beside it."""
    from safetensors.torch import load_file

    try:
        content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        fields = dict(content.pop("architecture"))
        fields["hidden"] = tuple(fields["hidden"])
        model = Architecture(**fields).build()
        model.load_state_dict(load_file(str(folder / "model.safetensors")))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            f"Cannot read a model from {str(folder)!r}: {error}. Give a folder that privada wrote."
        ) from error
    return model.eval(), content
