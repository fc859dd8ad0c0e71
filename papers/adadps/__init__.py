"""000: Private Adaptive Optimization with Side Information."""
