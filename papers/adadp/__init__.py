"""Koskela and Honkela (2020), Learning Rate Adaptation for Differentially Private Learning.

https://arxiv.org/abs/1809.03832
"""
