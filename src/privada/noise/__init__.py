"""Gaussian noise that nobody can predict, and how it changes from step to step."""

from privada.noise.gaussian import GaussianNoise
from privada.noise.independent import Independent, Noise, NoiseStream
from privada.noise.schedules import Schedule, constant

__all__ = ["GaussianNoise", "Independent", "Noise", "NoiseStream", "Schedule", "constant"]
