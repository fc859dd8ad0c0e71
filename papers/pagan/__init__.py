"""Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization.

https://arxiv.org/abs/2106.13756
"""
