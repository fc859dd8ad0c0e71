"""Li et al. (2022), Private Adaptive Optimization with Side Information: AdaDPS and its baselines.

Steps are counted t = 1, 2, ... as in the paper. A source is a function of (theta, t): `rows` gives
the gradients of the batch's examples, `public` the mean gradient of the public batch, `gradient` a
released gradient; `given` makes a source of a sequence. `normals` are standard normal vectors, one
a step. A rate, decay or constant is a number or a schedule, a function of t. Every method returns
the parameters after every step, first or alone.
"""

import numpy as np


def given(sequence):
    """Return the source that answers step t with the t-th entry, wherever theta is."""
    return lambda theta, t: sequence[t - 1]


def at(schedule, t):
    """Return a schedule's value at step t; a number is constant."""
    return schedule(t) if callable(schedule) else schedule


def clipped(row, clip):
    """Algorithm 1, line 7: clip(g, C) clips a vector to L2 norm C."""
    norm = np.sqrt(np.sum(row**2))
    return row if norm <= clip else row * (clip / norm)


def released(rows, normal, clip, noise_multiplier, batch_size):
    """Algorithm 1, line 7: (1/b) sum_i clip(g_i, C) + (1/b) N(0, sigma^2 C^2)."""
    total = np.zeros_like(normal)
    for row in rows:
        total = total + clipped(row, clip)
    return (total + noise_multiplier * clip * normal) / batch_size


def dp_gradient(rows, normals, clip, noise_multiplier, batch_size):
    """Return the source of DP-SGD's released gradients (Algorithm 2, lines 2 to 4)."""

    def gradient(theta, t):
        sigma = at(noise_multiplier, t)
        return released(rows(theta, t), normals[t - 1], clip, sigma, batch_size)

    return gradient


def sgd(theta, gradient, steps, lr):
    """Algorithm 1, line 8: w <- w - alpha^t g^t."""
    path = []
    for t in range(1, steps + 1):
        theta = theta - at(lr, t) * gradient(theta, t)
        path.append(theta)
    return path


# Public statistics. Each takes the public gradients ghat^1 .. ghat^t and returns for every step
# the triple (beta^t, M^t, A^t) of the precondition (beta g + (1 - beta) M) / A, Section 4.


def rmsprop(publics, decay=0.9, eps=1e-8):
    """(4) and (5): v^t = beta^t v^(t-1) + (1 - beta^t) (ghat^t)^2, A^t = sqrt(v^t) + eps^t."""
    v, statistics = np.zeros_like(publics[0]), []
    for t, g in enumerate(publics, start=1):
        v = at(decay, t) * v + (1 - at(decay, t)) * g**2
        statistics.append((1.0, np.zeros_like(g), np.sqrt(v) + at(eps, t)))
    return statistics


def adagrad(publics, eps=0.0):
    """Section 4, Option 1: (A^t)^2 = (A^(t-1))^2 + (ghat^t)^2, M = 0; the paper prints no eps."""
    total, statistics = np.zeros_like(publics[0]), []
    for t, g in enumerate(publics, start=1):
        total = total + g**2
        statistics.append((1.0, np.zeros_like(g), np.sqrt(total) + at(eps, t)))
    return statistics


def adam(publics, mix=0.9, decay1=0.9, decay2=0.999, eps=1e-8):
    """Section 4, Option 1: A as RMSProp, M the first moment; nothing is corrected for its start.

    The paper calls both the mix and the decays beta^t; here they are separate.
    """
    m, statistics = np.zeros_like(publics[0]), []
    for t, (_, _, scale) in enumerate(rmsprop(publics, decay2, eps), start=1):
        m = at(decay1, t) * m + (1 - at(decay1, t)) * publics[t - 1]
        statistics.append((at(mix, t), m, scale))
    return statistics


def adadps(theta, rows, public, normals, statistics, lr, clip, noise_multiplier, batch_size):
    """Algorithm 1, Option 1, with `statistics` one of the above: precondition, privatise, step.

    The public gradient is taken at w^t and counts in A^t. Returns the path and the triples
    (beta^t, M^t, A^t).
    """
    publics, path, used = [], [], []
    for t, normal in enumerate(normals, start=1):
        publics.append(public(theta, t))  # line 4
        mix, mean, scale = statistics(publics)[-1]
        whitened = [(mix * g + (1 - mix) * mean) / scale for g in rows(theta, t)]  # line 6
        g = released(whitened, normal, clip, noise_multiplier, batch_size)  # line 7
        theta = theta - at(lr, t) * g  # line 8
        path.append(theta)
        used.append((mix, mean, scale))
    return path, used


def adadps_fixed(theta, rows, normals, scale, lr, clip, noise_multiplier, batch_size):
    """Algorithm 1, Option 2: a preconditioner known before training."""
    path, _ = adadps(
        theta,
        rows,
        lambda theta, t: np.zeros_like(theta),
        normals,
        lambda publics: [(1.0, 0.0, scale)],
        lr,
        clip,
        noise_multiplier,
        batch_size,
    )
    return path


# The schedules of Theorem 2: 1 - gamma/t >= beta^t >= 1 - 1/t, sqrt(t) eps^t does not fall,
# alpha^t = alpha / sqrt(t). Decay and eps are taken at their bounds.


def theorem2_decay(gamma=1.0):
    return lambda t: 1 - gamma / t


def theorem2_eps(eps):
    return lambda t: eps / np.sqrt(t)


def theorem2_lr(lr):
    return lambda t: lr / np.sqrt(t)


# Fixed preconditioners from side information. The paper fixes them up to a factor only.


def root_mean_square(features, eps=0.0):
    """Section 5.1.1: A_j = sqrt(E[x_j^2]) + eps."""
    return np.sqrt(np.mean(features**2, axis=0)) + eps


def mean_absolute(features, eps=0.0):
    """Section 5.1.1: A_j = E|x_j| + eps."""
    return np.mean(np.abs(features), axis=0) + eps


def token_frequency(counts, eps=0.0):
    """Section 6.1.2: A proportional to token frequencies; counts are documents by tokens."""
    return np.sum(counts, axis=0) / np.sum(counts) + eps


def tf_idf(counts):
    """The total TF-IDF of each token: sum of (count / length) * log10(documents / holding it).

    Li et al. (2022) give no formula; this is that of the authors' imdb/data/generate_features.py.
    """
    total = np.zeros(counts.shape[1])
    for document in counts:
        total = total + document / np.sum(document)
    held = np.sum(counts > 0, axis=0)
    return total * np.log10(len(counts) / np.maximum(held, 0.1))


def inverse_tf_idf(counts, eps=1e-10):
    """Section 6.1.2, Table 4: A inversely proportional to TF-IDF (Section 4 says proportional)."""
    return 1 / (tf_idf(counts) + eps)


# The comparisons of Section 6 and Appendix C.


def adas(theta, gradient, steps, scale, lr):
    """Appendix B: AdaDPS's precondition without privatisation; `gradient` is a batch mean."""
    return sgd(theta, lambda theta, t: gradient(theta, t) / scale, steps, lr)


def dp_r_pub(theta, gradient, public, steps, lr, decay=0.9, eps=1e-8):
    """Section 6.1.1: g <- g / (sqrt(E[ghat^2]) + eps^t) after the release."""
    publics, path = [], []
    for t in range(1, steps + 1):
        publics.append(public(theta, t))
        scale = rmsprop(publics, decay, eps)[-1][2]
        theta = theta - at(lr, t) * gradient(theta, t) / scale
        path.append(theta)
    return path


def dp_adam_pub(theta, gradient, public, steps, lr, beta1=0.9, beta2=0.9, beta3=0.999, eps=1e-8):
    """Appendix C.1: beta1 mixes private and public, beta2 and beta3 decay the moments."""
    m, v, path = np.zeros_like(theta), np.zeros_like(theta), []
    for t in range(1, steps + 1):
        g, g_hat = gradient(theta, t), public(theta, t)
        m = beta2 * m + (1 - beta2) * (beta1 * g + (1 - beta1) * g_hat)
        v = beta3 * v + (1 - beta3) * g_hat**2
        theta = theta - at(lr, t) * (m / (1 - beta2**t)) / (np.sqrt(v / (1 - beta3**t)) + eps)
        path.append(theta)
    return path


def cosine_weight(steps):
    """The private weight of Amid et al. (2021), as the code of Li et al. (2022) has it.

    It is cos(pi t / 2T), t counted from 0.
    """
    return lambda t: np.cos(np.pi * (t - 1) / (2 * steps))


def pda_dpmd(theta, gradient, public, steps, lr, weight):
    """Section 6.1.1: the step is along weight * private + (1 - weight) * public gradient."""

    def mixed(theta, t):
        return at(weight, t) * gradient(theta, t) + (1 - at(weight, t)) * public(theta, t)

    return sgd(theta, mixed, steps, lr)


def warm_start(theta, public, steps, lr, decay=0.9, eps=1e-8):
    """Appendix C.1, Table 7: RMSProp on public data; DP-SGD starts from the last parameters."""
    return dp_r_pub(theta, public, public, steps, lr, decay, eps)
