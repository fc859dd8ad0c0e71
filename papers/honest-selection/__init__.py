"""Mohapatra et al. (2022), honest private hyperparameter selection.

The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection,
https://arxiv.org/abs/2111.04906
"""
