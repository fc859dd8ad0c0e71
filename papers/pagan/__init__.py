"""004: Private Adaptive Gradient Methods for Convex Optimization."""
