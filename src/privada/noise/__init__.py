"""Gaussian noise that nobody can predict, and how it changes from step to step."""

from privada.noise.banded import Banded, Correlated
from privada.noise.following import (
    FollowingSchedule,
    FollowMoment,
    FollowNorm,
    Outlook,
    WhenDescentStops,
    follow_moment,
    follow_norm,
    when_descent_stops,
)
from privada.noise.gaussian import GaussianNoise
from privada.noise.independent import Independent, Noise, NoiseStream
from privada.noise.schedules import Schedule, constant

__all__ = [
    "Banded",
    "Correlated",
    "FollowMoment",
    "FollowNorm",
    "FollowingSchedule",
    "GaussianNoise",
    "Independent",
    "Noise",
    "NoiseStream",
    "Outlook",
    "Schedule",
    "WhenDescentStops",
    "constant",
    "follow_moment",
    "follow_norm",
    "when_descent_stops",
]
