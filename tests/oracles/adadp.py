"""Koskela and Honkela (2020), Learning Rate Adaptation for Differentially Private Learning: ADADP.

`gradient` is a source of released gradients, a function of (theta, i), i = 1, 2, ...; iteration l
asks for i = 2l - 1 at theta_l and for i = 2l at the half step. Sources as in `adadps`.
"""

import numpy as np


def error(full, halves):
    """(4.1): the 2-norm of |theta_i - theta^_i| / max(1, |theta_i|), theta being the full step."""
    return np.sqrt(np.sum((np.abs(full - halves) / np.maximum(1, np.abs(full))) ** 2))


def tolerance(dimension, iterations):
    """Section 4.2: tau = sqrt(d / 2T), T iterations of two gradients each.

    The experiments use its order of magnitude: 1.0 for neural networks, 0.1 for mixtures.
    """
    return np.sqrt(dimension / (2 * iterations))


def factor(err, tau, power, low=0.9, high=1.1):
    """min(max((tau/err)^power, alpha_min), alpha_max).

    Power 1 is Algorithm 2 as printed; 1/2 is the authors' released code.
    """
    return high if err == 0 else min(max((tau / err) ** power, low), high)


def adadp(
    theta, gradient, iterations, lr, tau, go_on="halves", power=0.5, accept=False, low=0.9, high=1.1
):
    """Algorithm 2. Returns the path, the learning rate after each iteration, and the errors.

    go_on="full", power=1 is as printed, where the second gradient only measures the error;
    go_on="halves", power=1/2 is the authors' released code. `accept` discards steps whose error is
    above tau, as Algorithm 2 prints and as the neural network experiments left out (Section 4).
    """
    path, rates, errors = [], [], []
    for iteration in range(1, iterations + 1):
        g1 = gradient(theta, 2 * iteration - 1)
        full = theta - lr * g1
        half = theta - lr / 2 * g1
        g2 = gradient(half, 2 * iteration)
        halves = half - lr / 2 * g2
        err = error(full, halves)
        if not (accept and err > tau):
            theta = {"full": full, "halves": halves}[go_on]
        lr = factor(err, tau, power, low, high) * lr
        path.append(theta)
        rates.append(lr)
        errors.append(err)
    return path, rates, errors


def decayed(lr, epoch, freeze=50, rate=0.1):
    """(5.1): eta_k = eta_50 / (1 + 0.1 (k - 50)) in epoch k > 50; eta_50 is frozen before."""
    return lr / (1 + rate * max(epoch - freeze, 0))


def freeze_then_decay(theta, gradient, epochs, steps_per_epoch, lr, freeze=50, rate=0.1):
    """Section 5.2: plain DP-SGD in epochs freeze + 1, freeze + 2, ... with rate (5.1).

    `lr` is what ADADP has found by the end of epoch `freeze`. Returns the path and the rates.
    """
    path, rates = [], []
    for i in range(epochs * steps_per_epoch):
        eta = decayed(lr, freeze + 1 + i // steps_per_epoch, freeze, rate)
        theta = theta - eta * gradient(theta, i + 1)
        path.append(theta)
        rates.append(eta)
    return path, rates
