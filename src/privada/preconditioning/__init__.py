"""Preconditioners: the scales in which gradients are clipped, and where they come from."""

from privada.preconditioning.diagonal import (
    DiagonalScaling,
    FlatScaling,
    Preconditioner,
    Restoring,
    diagonal,
    isotropic,
    restoring,
)
from privada.preconditioning.feature_moments import (
    PrivateFeatureMoments,
    private_feature_moments,
)
from privada.preconditioning.features import by_feature, feature_moments, tf_idf, token_frequency
from privada.preconditioning.moments import (
    KnownMoments,
    Moments,
    PrivateSecondMoments,
    PublicMoments,
    known_moments,
    private_second_moments,
    public_moments,
)
from privada.preconditioning.public_data import ideal, public_gradients, theorem_2
from privada.preconditioning.releases import PastReleases, delayed, past_releases

__all__ = [
    "DiagonalScaling",
    "FlatScaling",
    "KnownMoments",
    "Moments",
    "PastReleases",
    "Preconditioner",
    "PrivateFeatureMoments",
    "PrivateSecondMoments",
    "PublicMoments",
    "Restoring",
    "by_feature",
    "delayed",
    "diagonal",
    "feature_moments",
    "ideal",
    "isotropic",
    "known_moments",
    "past_releases",
    "private_feature_moments",
    "private_second_moments",
    "public_gradients",
    "public_moments",
    "restoring",
    "tf_idf",
    "theorem_2",
    "token_frequency",
]
