"""Wu et al. (2021), Adaptive Differentially Private Empirical Risk Minimization: ADP-SGD.

The step of iteration t = 0 .. T-1 has index t + 1, so that schedules are b_1 .. b_T and
alpha_1 .. alpha_T. `gradient` is a source as in `adadps`, asked for t = 1 .. T.
"""

import numpy as np

from tests.oracles.adadps import released


def decaying(steps, a=20.0, c=1.0):
    """Section 5.1: b_t = (a + ct)^(1/2), t = 1 .. T; Section 6 takes a = 20, c = 1."""
    return np.sqrt(a + c * np.arange(1, steps + 1))


def optimal_alphas(b):
    """Remark 4.1: alpha_t^2 = b_t."""
    return np.sqrt(b)


def fixed_alphas(steps, b0_squared, c):
    """Section 5.2: alpha_t^2 = sqrt(b_0^2 + tC), t = 1 .. T, set before training."""
    return (b0_squared + c * np.arange(1, steps + 1)) ** 0.25


def noisy_gradient(rows, normals, alphas, clip, noise_multiplier, batch_size):
    """Algorithm 1, line 6: the source of gradients with the noise of step t scaled by alpha_t."""

    def gradient(theta, t):
        sigma = noise_multiplier * alphas[t - 1]
        return released(rows(theta, t), normals[t - 1], clip, sigma, batch_size)

    return gradient


def adp_sgd(theta, gradient, b, lr):
    """Algorithm 1, lines 6 and 7, with b_1 .. b_T known beforehand: theta <- theta - eta/b_t g."""
    path = []
    for t, divisor in enumerate(b, start=1):
        theta = theta - lr / divisor * gradient(theta, t)
        path.append(theta)
    return path


def adaptive(theta, gradient, steps, lr, b0_squared=20.0, floor=1e-5, boost=lambda t: 1.0):
    """Sections 5.2 and 6.2: b_(t+1)^2 = b_t^2 + max(beta_t |g_t|^2, nu), then the step eta/b_(t+1).

    The paper has the raw gradient in g_t; here it is the release. `boost` is beta_t, t = 0 .. T-1.
    Returns the path and b_1 .. b_T.
    """
    squared, path, b = b0_squared, [], []
    for t in range(steps):
        g = gradient(theta, t + 1)
        squared = squared + max(boost(t) * np.sum(g**2), floor)
        theta = theta - lr / np.sqrt(squared) * g
        path.append(theta)
        b.append(np.sqrt(squared))
    return path, b


def boosted(beta, period=195):
    """Section 6.2: beta_t = max(beta / ((t mod 195) + 1), 1)."""
    return lambda t: max(beta / (t % period + 1), 1.0)


def m(alphas, b):
    """Theorem 4.2: M({alpha_t}, {b_t}) = sum (alpha_t / b_t)^2 * sum 1 / alpha_t^2."""
    return np.sum((alphas / b) ** 2) * np.sum(1 / alphas**2)


def m_adp(b):
    """(8): the least M, (sum 1/b_t)^2."""
    return np.sum(1 / b) ** 2


def m_dp(b):
    """Remark 4.1: M of DP-SGD, T sum 1/b_t^2."""
    return len(b) * np.sum(1 / b**2)


def improvement(b):
    """Remark 4.1: M_dp / M_adp; 1.8675 for `decaying(23_400)`, Section 6's 120 epochs."""
    return m_dp(b) / m_adp(b)


def log_term(steps, n, delta):
    """Theorem 4.1: B_delta = log(16T / (n delta)) log(1.25 / delta)."""
    return np.log(16 * steps / (n * delta)) * np.log(1.25 / delta)


def noise_variance(alphas, lipschitz, n, epsilon, delta):
    """(6): sigma^2 = (16G)^2 B_delta / (n eps)^2 * sum 1/alpha_t^2."""
    b_delta = log_term(len(alphas), n, delta)
    return (16 * lipschitz) ** 2 * b_delta / (n * epsilon) ** 2 * np.sum(1 / alphas**2)


def utility(alphas, b, squared_norms, gap, smoothness, lipschitz, d, n, epsilon, delta, lr=1.0):
    """Theorem 4.2, (7): the bound on the least expected squared gradient norm.

    `gap` is D_F, `squared_norms` the E|grad f(theta_t)|^2. The privacy term has the factor eta L
    that (7) drops and (9) and (10) have: it is (eta L / 2) d sigma^2 sum (alpha_t / b_t)^2.
    """
    sigma_squared = noise_variance(alphas, lipschitz, n, epsilon, delta)
    optimisation = gap / lr + lr * smoothness / 2 * np.sum(squared_norms / b**2)
    privacy = lr * smoothness / 2 * d * sigma_squared * np.sum((alphas / b) ** 2)
    return (optimisation + privacy) / np.sum(1 / b)
