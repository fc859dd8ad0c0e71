"""To add a clip, write one file: a gradient is shortened smoothly, u C / sqrt(|u|^2 + C^2)."""

from dataclasses import dataclass

import torch

from privada.clipping import Clipping


@dataclass(frozen=True)
class SoftBound:
    """A factor that the norm decides, never above one."""

    def factors(self, norms, clip):
        return clip / torch.hypot(norms, torch.full_like(norms, clip))

    def finish_(self, total, clip):
        return total

    def sum_of(self, rows, scaling, clip):
        if scaling.shift is not None:
            rows = rows - scaling.shift
        if scaling.scale is not None:
            rows = rows / scaling.scale
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        finite = torch.isfinite(norms)
        rows = torch.where(finite[:, None], rows, 0.0)
        factors = self.factors(torch.where(finite, norms, 0.0), clip)
        return factors.to(rows.dtype) @ rows

    def __repr__(self):
        return "soft_clip()"


def soft_clip():
    return Clipping(SoftBound())
