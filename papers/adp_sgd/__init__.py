"""Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization.

https://arxiv.org/abs/2110.07435
"""
