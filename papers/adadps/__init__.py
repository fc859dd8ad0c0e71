"""Li et al. (2022), Private Adaptive Optimization with Side Information.

https://arxiv.org/abs/2202.05963
"""
