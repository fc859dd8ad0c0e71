"""Models that tables are trained with: made from a description, kept in files that all can read."""

import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from privada.core.errors import ArgumentError, ModelError
from privada.core.validation import integer

KINDS = ("linear", "mlp")
_FORMAT = 1
_FACTS, _WEIGHTS = "model.json", "model.safetensors"


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

    weights = folder / _WEIGHTS
    save_file(_apart(model.state_dict()), str(weights))
    weights.chmod(0o644)  # the library makes it readable by its owner alone
    content = {"format": _FORMAT, "architecture": asdict(architecture), **facts}
    (folder / _FACTS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _apart(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors that share no memory, as the format wants them."""
    return {name: value.detach().cpu().contiguous().clone() for name, value in values.items()}


def _facts(folder: Path) -> dict[str, Any]:
    """Return what model.json says."""
    if not (folder / _FACTS).is_file():  # a pipe would be waited for
        raise _unreadable(folder, f"it has no file {_FACTS}")
    try:
        content = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(folder, f"{_FACTS}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise _unreadable(folder, f"{_FACTS} is not JSON") from None
    known = content.get("format") if isinstance(content, dict) else None
    if isinstance(known, int) and known > _FORMAT:
        raise ArgumentError(
            f"Cannot read a model from {str(folder)!r}: it has format {known}, and this version of "
            f"Privada knows formats up to {_FORMAT}. Use the version that wrote it, or a later one."
        )
    if known != _FORMAT or not isinstance(content.get("architecture"), dict):
        raise _unreadable(folder, f"{_FACTS} is not of Privada's format")
    return dict(content)


def load(folder: Path, trust: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """Return a model that `save` wrote, and the facts beside it.

    Args:
        folder: the folder with model.json and model.safetensors.
        trust: the "module:factory" of a model of one's own, which is imported and run. Without it
            no code is run that a folder names.

    Returns:
        The model, ready to predict, and the facts of model.json but for the architecture.

    Edge cases: files that are damaged, of another format or a newer one, weights that do not fit
    the architecture, and weights that are not finite are refused. Weights of a linear model or an
    mlp are compared with its architecture before memory is taken for it.

    Example: see `save`.
    """
    content = _facts(folder)
    fields = content.pop("architecture")
    try:
        architecture = Architecture(**{**fields, "hidden": tuple(fields["hidden"])})
    except (ArgumentError, KeyError, TypeError) as error:
        raise _unreadable(folder, f"{_FACTS} describes no model: {error}") from None
    kind = architecture.kind
    if kind not in KINDS and kind != trust:
        raise ArgumentError(
            f"Expected a model that Privada builds itself, got {kind!r} in {str(folder)!r}, which "
            "is code. If you know it and the folder, let it be run with "
            f"trust={kind!r}, or --trust {kind} on the command line."
        )
    model = _filled(architecture, _weights(folder, architecture), folder)
    for name, parameter in model.named_parameters():
        if not bool(parameter.isfinite().all()):
            raise _unreadable(folder, f"{name!r} has weights that are not finite")
    return model.eval(), content


def _weights(folder: Path, architecture: Architecture) -> dict[str, Tensor]:
    """Return the tensors in a file of at least as many as the architecture has layers."""
    from safetensors import SafetensorError, safe_open

    path = folder / _WEIGHTS
    if not path.is_file():
        raise _unreadable(folder, f"it has no file {_WEIGHTS}")
    try:
        with safe_open(str(path), framework="pt") as file:
            names = list(file.keys())
            if len(architecture.hidden) >= len(names):
                raise _unreadable(folder, f"{_WEIGHTS} has too few layers")
            return {name: file.get_tensor(name) for name in names}
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ArgumentError):
            raise
        raise _unreadable(folder, f"{_WEIGHTS} is damaged or of another format") from None


def _filled(architecture: Architecture, weights: dict[str, Tensor], folder: Path) -> nn.Module:
    """Return the model with its weights."""
    if architecture.kind in KINDS:
        found = {name: tuple(value.shape) for name, value in weights.items()}
        real = all(value.is_floating_point() for value in weights.values())
        if found != _shapes(architecture) or not real:  # or any size would be allocated
            raise _unreadable(folder, f"{_WEIGHTS} does not fit the architecture in {_FACTS}")
    model = architecture.build()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        words = " ".join(str(error).split())
        why = f"{_WEIGHTS} does not fit {architecture.kind!r}: {words}"
        raise _unreadable(folder, why) from None
    return model


def _shapes(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights of a linear model or an mlp."""
    widths = (architecture.inputs, *architecture.hidden, architecture.outputs)
    shapes: dict[str, tuple[int, ...]] = {}
    for place, (before, after) in enumerate(pairwise(widths)):
        layer = f"{2 * place}." if architecture.hidden else ""
        shapes |= {f"{layer}weight": (after, before), f"{layer}bias": (after,)}
    return shapes


def _unreadable(folder: Path, why: str) -> ArgumentError:
    return ArgumentError(
        f"Cannot read a model from {str(folder)!r}: {why}. Give a folder that privada wrote, or "
        "restore it from a copy."
    )
