"""The shape in which gradients are clipped, and where it comes from."""

from privada.preconditioning.diagonal import (
    DiagonalScaling,
    FlatScaling,
    Preconditioner,
    diagonal,
    isotropic,
    restoring,
)
from privada.preconditioning.features import by_feature, feature_moments, tf_idf, token_frequency
from privada.preconditioning.moments import (
    Moments,
    known_moments,
    private_second_moments,
    public_moments,
)
from privada.preconditioning.public_data import ideal, public_gradients, theorem_2
from privada.preconditioning.releases import delayed, past_releases

__all__ = [
    "DiagonalScaling",
    "FlatScaling",
    "Moments",
    "Preconditioner",
    "by_feature",
    "delayed",
    "diagonal",
    "feature_moments",
    "ideal",
    "isotropic",
    "known_moments",
    "past_releases",
    "private_second_moments",
    "public_gradients",
    "public_moments",
    "restoring",
    "tf_idf",
    "theorem_2",
    "token_frequency",
]
