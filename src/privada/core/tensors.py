"""One flat vector for all trainable parameters, and the names that map into it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from privada.core.errors import ArgumentError, ModelError

# Noise is exact on its lattice only with the mantissa that these have.
_TYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in a flat vector.

    Example:
        >>> import torch
        >>> from privada.core.tensors import Layout
        >>> layout = Layout(("w", "b"), (torch.Size([2, 3]), torch.Size([2])))
        >>> layout.size
        8
        >>> layout.split(torch.arange(8.0))["b"]
        tensor([6., 7.])
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @property
    def sizes(self) -> list[int]:
        """The number of coordinates of each parameter."""
        return [shape.numel() for shape in self.shapes]

    @property
    def size(self) -> int:
        """The number of coordinates in all."""
        return sum(self.sizes)

    def slices(self) -> Iterator[tuple[str, slice, torch.Size]]:
        """Yield each name with its place and its shape."""
        ends = list(accumulate(self.sizes))
        for name, size, end, shape in zip(self.names, self.sizes, ends, self.shapes, strict=True):
            yield name, slice(end - size, end), shape

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of `flat`, one per parameter."""
        return {name: flat[place].view(shape) for name, place, shape in self.slices()}

    def join(self, named: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector of a map that has every name, each broadcast to its shape."""
        missing = [name for name in self.names if name not in named]
        unknown = [name for name in named if name not in self.names]
        if missing or unknown:
            raise ArgumentError(
                f"Expected one tensor for each of the parameters {list(self.names)}, got "
                f"{'missing ' + str(missing) if missing else ''}"
                f"{' and ' if missing and unknown else ''}"
                f"{'unknown ' + str(unknown) if unknown else ''}. "
                "Name them as model.named_parameters() does."
            )
        parts = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            try:
                parts.append(named[name].expand(shape).reshape(-1))
            except RuntimeError as error:
                raise ArgumentError(
                    f"Expected the tensor for parameter {name!r} to broadcast to shape "
                    f"{tuple(shape)}, got shape {tuple(named[name].shape)}."
                ) from error
        return torch.cat(parts)


class Parameters:
    """The trainable parameters of a model, read and moved as one vector.

    Tied parameters occur once. Frozen ones (`requires_grad=False`) do not occur.
    """

    def __init__(self, model: nn.Module) -> None:
        whole = getattr(model, "_orig_mod", model)  # what torch.compile was given
        named = {name: p for name, p in whole.named_parameters() if p.requires_grad}
        if not named:
            raise ModelError(
                "Expected a model with at least one trainable parameter, got none. "
                "Set requires_grad=True on what should be trained."
            )
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in named.values()):
            raise ModelError(
                "Expected a model whose parameters have shapes, got lazy layers that have not run "
                "yet. Run the model once on made-up input first."
            )
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) > 1 or next(iter(named.values())).dtype not in _TYPES:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ModelError(
                f"Expected all trainable parameters in float32, or all in float64, on one device, "
                f"got {listed}. Move the model with model.to(device, torch.float32)."
            )
        self._tensors: list[Tensor] = list(named.values())
        self.layout = Layout(tuple(named), tuple(p.shape for p in named.values()))

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return self.layout.size

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters."""
        return self._tensors[0].dtype

    @property
    def device(self) -> torch.device:
        """The device that the parameters are on."""
        return self._tensors[0].device

    def zeros(self) -> Tensor:
        """Return a vector of zeros with an entry for each coordinate."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def read(self) -> Tensor:
        """Return a copy of the parameters as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self._tensors])

    @torch.no_grad()
    def add_(self, step: Tensor) -> None:
        """Add `step` to the parameters in place."""
        parts: list[Tensor] = list(self.layout.split(step).values())
        torch._foreach_add_(self._tensors, parts)

    @torch.no_grad()
    def write_(self, values: Tensor) -> None:
        """Set the parameters in place."""
        torch._foreach_copy_(self._tensors, list(self.layout.split(values).values()))

    def set_gradient(self, gradient: Tensor) -> None:
        """Put a released gradient where torch optimisers look for it."""
        for parameter, part in zip(
            self._tensors, self.layout.split(gradient).values(), strict=True
        ):
            parameter.grad = part
