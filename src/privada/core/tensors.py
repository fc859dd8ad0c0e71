"""One flat vector for all trainable parameters, and the names that map into it."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor, nn

from privada.core.errors import ArgumentError, DataError, ModelError, PrivadaError
from privada.core.public_examples import Public, PublicSide

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

    @cached_property
    def sizes(self) -> list[int]:
        """The number of coordinates of each parameter."""
        return [shape.numel() for shape in self.shapes]

    @cached_property
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
        return dict(zip(self.names, self.pieces(flat), strict=True))

    def pieces(self, flat: Tensor) -> list[Tensor]:
        """Return views of `flat`, one per parameter, without their names."""
        parts = torch.split(flat, self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

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

    Tied parameters occur once. Frozen ones (`requires_grad=False`) do not occur. With a `side`,
    gradients of public examples can be taken at them. `epoch` is how many steps one pass over the
    records takes, and `curvature` the largest second derivative of the loss in any direction of the
    outputs, where these are known.
    """

    def __init__(
        self, model: nn.Module, side: PublicSide | None = None, epoch: int | None = None
    ) -> None:
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
                "yet. Run the model once on dummy input first."
            )
        kinds = {(p.dtype, p.device) for p in named.values()}
        if len(kinds) > 1 or next(iter(named.values())).dtype not in _TYPES:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
            raise ModelError(
                f"Expected all trainable parameters in float32, or all in float64, on one device, "
                f"got {listed}. Move the model with model.to(device, torch.float32)."
            )
        self._model, self._side, self.epoch = whole, side, epoch
        self.curvature: float | None = None
        self._tensors: list[Tensor] = list(named.values())
        self.layout = Layout(tuple(named), tuple(p.shape for p in named.values()))
        self.size = self.layout.size  # the number of coordinates
        self.first = self._tensors[0]  # has the type and the device of all

    @property
    def dtype(self) -> torch.dtype:
        """The floating type of the parameters."""
        return self.first.dtype

    @property
    def device(self) -> torch.device:
        """The device that the parameters are on."""
        return self.first.device

    @property
    def ids(self) -> list[int]:
        """The ids of the tensors themselves."""
        return [id(tensor) for tensor in self._tensors]

    def names_of(self, tensors: Iterable[Tensor]) -> list[str]:
        """Return the names of those tensors that are trainable parameters, in order."""
        known = dict(zip(self.ids, self.layout.names, strict=True))
        found = {known[id(tensor)] for tensor in tensors if id(tensor) in known}
        return [name for name in self.layout.names if name in found]

    @contextmanager
    def trainable(self) -> Iterator[list[Tensor]]:
        """Yield the tensors themselves; all of them require gradients for as long."""
        frozen = [tensor for tensor in self._tensors if not tensor.requires_grad]
        try:
            for tensor in frozen:
                tensor.requires_grad_()
            yield self._tensors
        finally:
            for tensor in frozen:
                tensor.requires_grad_(False)

    def zeros(self) -> Tensor:
        """Return a vector of zeros with an entry for each coordinate."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def read(self) -> Tensor:
        """Return a copy of the parameters as one vector."""
        return torch.cat([p.detach().reshape(-1) for p in self._tensors])

    @torch.no_grad()
    def add_(self, direction: Tensor, length: float = 1.0) -> None:
        """Add a multiple of `direction` to the parameters in place."""
        torch._foreach_add_(self._tensors, self.layout.pieces(direction), alpha=length)

    @torch.no_grad()
    def write_(self, values: Tensor) -> None:
        """Set the parameters in place."""
        torch._foreach_copy_(self._tensors, self.layout.pieces(values))

    def public_gradient(self, public: Public, number: int) -> Tensor:
        """Return the average gradient of public batch `number` at the parameters as they are."""
        return self._public_side().average(public, number)

    def public_gradients(self, public: Public, number: int) -> Tensor:
        """Return the gradients of the examples of public batch `number` as rows."""
        return self._public_side().each(public, number)

    def public_squares(self, public: Public, number: int) -> Tensor:
        """Return the average square of each coordinate over the gradients of a public batch."""
        return self._public_side().squares(public, number)

    def try_public(self, public: Public, *, declared: bool = True) -> None:
        """Raise unless the model and the loss accept the examples, which were declared public."""
        side = self._public_side()
        try:
            side.check(public, declared=declared)
        except PrivadaError:
            raise
        except Exception as error:  # whatever a user's model raises
            raise DataError(
                "Expected public examples that the model and the loss accept, got some on which "
                f"they fail with: {str(error).rstrip('.')}. Give them as private ones are given."
            ) from error

    def _public_side(self) -> PublicSide:
        if self._side is None:
            raise ModelError(
                "Expected parameters that public gradients can be taken at, got some without a "
                "loss. Use the method with Trainer or PrivateLoop."
            )
        return self._side

    def inputs_of(self, width: int, layer: str | None = None) -> tuple[str, int]:
        """Return the matrix that meets inputs of `width` features first, and their dimension.

        That is the first linear layer with so many inputs or the first embedding with so many
        rows; `layer` names another one, as model.named_modules() does.
        """
        kinds = {nn.Linear: 1, nn.Embedding: 0, nn.EmbeddingBag: 0}
        found = []
        for name, module in self._model.named_modules():
            axis = next((axis for kind, axis in kinds.items() if isinstance(module, kind)), None)
            if axis is None or layer not in (None, name):
                continue
            weight = f"{name}.weight" if name else "weight"
            if weight in self.layout.names and module.weight.shape[axis] == width:
                return weight, axis
            found.append(f"{name or 'the model itself'} {tuple(module.weight.shape)}")
        raise ArgumentError(
            f"Expected a trainable linear layer with {width} inputs or an embedding of {width} "
            f"rows{'' if layer is None else f' named {layer!r}'}, one for each feature, got "
            f"{', '.join(found) or 'none'}. Name the layer with layer=, or give scales by "
            "parameter with pv.preconditioning.diagonal."
        )

    def set_gradient(self, gradient: Tensor) -> None:
        """Put a released gradient where torch optimisers look for it."""
        for parameter, part in zip(
            self._tensors, self.layout.split(gradient).values(), strict=True
        ):
            parameter.grad = part
