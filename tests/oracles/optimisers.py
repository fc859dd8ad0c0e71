"""The update rules as their papers print them, in plain NumPy.

Each takes the parameters, the sequence of released gradients and the settings, and returns the
parameters after every step.
"""

import numpy as np


def momentum(theta, gradients, lr, decay=0.9):
    """Qian (1999): the heavy ball."""
    m, path = np.zeros_like(theta), []
    for g in gradients:
        m = decay * m + g
        theta = theta - lr * m
        path.append(theta)
    return path


def adam(theta, gradients, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    """Kingma and Ba (2015), Algorithm 1; Li et al. (2022), Algorithm 2, on privatised gradients."""
    m, v, path = np.zeros_like(theta), np.zeros_like(theta), []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        theta = theta - lr * m_hat / (np.sqrt(v_hat) + eps)
        path.append(theta)
    return path


def adam_wosm(theta, gradients, lr, noise, beta1=0.9, eps=1e-8):
    """Mohapatra et al. (2022), Section 6: Adam at its limit, Theorem 3.

    ESS* = lr / (sigma C / L + xi).

    `noise` is sigma C / L.
    """
    m, path = np.zeros_like(theta), []
    for t, g in enumerate(gradients, start=1):
        m = beta1 * m + (1 - beta1) * g
        theta = theta - lr / (noise + eps) * (m / (1 - beta1**t))
        path.append(theta)
    return path


def rmsprop(theta, gradients, lr, decay=0.99, eps=1e-8):
    """Hinton et al. (2012); Li et al. (2022), Section 6, on privatised gradients."""
    v, path = np.zeros_like(theta), []
    for g in gradients:
        v = decay * v + (1 - decay) * g**2
        theta = theta - lr * g / (np.sqrt(v) + eps)
        path.append(theta)
    return path


def adagrad(theta, gradients, lr, eps=1e-10):
    """Duchi, Hazan and Singer (2011), diagonal; Asi et al. (2021), Section 5, privatised."""
    total, path = np.zeros_like(theta), []
    for g in gradients:
        total = total + g**2
        theta = theta - lr * g / (np.sqrt(total) + eps)
        path.append(theta)
    return path
