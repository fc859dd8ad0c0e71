"""The shape in which gradients are clipped, and where it comes from."""

from privada.geometry.diagonal import (
    Geometry,
    Shape,
    Whitening,
    diagonal,
    isotropic,
    restoring,
)
from privada.geometry.features import by_feature, feature_moments, tf_idf, token_frequency
from privada.geometry.moments import (
    Moments,
    known_moments,
    private_second_moments,
    public_moments,
)
from privada.geometry.public import ideal, public_gradients, theorem_2
from privada.geometry.releases import delayed, past_releases

__all__ = [
    "Geometry",
    "Moments",
    "Shape",
    "Whitening",
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
