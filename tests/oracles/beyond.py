"""Four methods of later papers, on the same pipeline. Sources as in `adadps`."""

import numpy as np

from tests.oracles.adadps import at, released


def dp_adambc(theta, gradient, steps, lr, noise, beta1=0.9, beta2=0.999, floor=5e-8):
    """Tang, Shpilevskiy and Lecuyer (2024), DP-AdamBC: Adam less the noise's second moment.

    theta <- theta - lr m^ / sqrt(max(v^ - (sigma C / B)^2, gamma')); `noise` is sigma C / B and
    `floor` gamma'. Returns the path and the corrected second moments.
    """
    m, v, path, corrected = np.zeros_like(theta), np.zeros_like(theta), [], []
    for t in range(1, steps + 1):
        g = gradient(theta, t)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        second = np.maximum(v_hat - noise**2, floor)
        theta = theta - at(lr, t) * m_hat / np.sqrt(second)
        path.append(theta)
        corrected.append(second)
    return path, corrected


def scale_then_privatise(
    theta,
    rows,
    normals,
    lr,
    clip,
    noise_multiplier,
    batch_size,
    beta1=0.9,
    beta2=0.999,
    eps=1e-8,
    eps_scale=1e-8,
    corrected=False,
):
    """Ganesh, McMahan and Thakurta (2025), Algorithm 8: whiten by what Adam knew before the step.

    s_t = sqrt(v_(t-1)) + eps_s; clip and noise g_i / s_t; restore by s_t; Adam on the result.
    v_0 = 0; `corrected` divides v_(t-1) by 1 - beta2^(t-1) from the second step on.
    Returns the path, the scales s_t and the restored releases.
    """
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    path, scales, restored = [], [], []
    for t, normal in enumerate(normals, start=1):
        known = v / (1 - beta2 ** (t - 1)) if corrected and t > 1 else v
        scale = np.sqrt(known) + eps_scale
        whitened = [row / scale for row in rows(theta, t)]
        g = scale * released(whitened, normal, clip, noise_multiplier, batch_size)
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        theta = theta - at(lr, t) * m_hat / (np.sqrt(v_hat) + eps)
        path.append(theta)
        scales.append(scale)
        restored.append(g)
    return path, scales, restored


def dp2_rmsprop(
    theta,
    rows,
    normals,
    lr,
    adaptive_lr,
    clip,
    adaptive_clip,
    noise_multiplier,
    batch_size,
    sgd_steps,
    adaptive_steps,
    decay=0.9,
    eps=1e-8,
):
    """Li, Zaheer, Liu, Reddi, McMahan and Smith (2023), Algorithm 1, RMSProp form of DP^2.

    By turns s1 steps of DP-SGD, whose releases are summed in G, and s2 steps preconditioned by
    sqrt(v) + eps before clipping, where v <- beta v + (1 - beta) (G / s1)^2 at each switch.
    Returns the path and v after every step.
    """
    total, v = np.zeros_like(theta), np.zeros_like(theta)
    path, moments = [], []
    for t, normal in enumerate(normals):
        place = t % (sgd_steps + adaptive_steps)
        gradients = rows(theta, t + 1)
        if place == 0:
            total = np.zeros_like(theta)
        if place == sgd_steps:
            v = decay * v + (1 - decay) * (total / sgd_steps) ** 2
        if place < sgd_steps:
            g = released(gradients, normal, clip, noise_multiplier, batch_size)
            total = total + g
            theta = theta - lr * g
        else:
            whitened = [row / (np.sqrt(v) + eps) for row in gradients]
            g = released(whitened, normal, adaptive_clip, noise_multiplier, batch_size)
            theta = theta - adaptive_lr * g
        path.append(theta)
        moments.append(v)
    return path, moments


def auto_s(row, gamma=0.01):
    """Bu, Wang, Zha and Karypis (2023): g / (|g| + gamma), of norm below 1."""
    return row / (np.sqrt(np.sum(row**2)) + gamma)


def auto_s_gradient(rows, normals, noise_multiplier, batch_size, gamma=0.01, clip=1.0):
    """The source of AUTO-S releases: (clip/B) (sum_i auto_s(g_i) + sigma N(0, I)).

    The paper's R-independent form has clip = 1.
    """

    def gradient(theta, t):
        total = np.zeros_like(theta)
        for row in rows(theta, t):
            total = total + auto_s(row, gamma)
        return clip * (total + noise_multiplier * normals[t - 1]) / batch_size

    return gradient
