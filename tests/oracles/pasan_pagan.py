"""Asi et al. (2021), Private Adaptive Gradient Methods for Convex Optimization.

PASAN, PAGAN and Algorithm 3.

An ellipsoid {x : sum_j A_jj x_j^2 <= 1} is given by its half axes s_j = A_jj^(-1/2), so that g / s
is the whitened gradient and N(0, A^-1) is s times a standard normal. Sources are as in `adadps`;
projections on the feasible set are functions of (x, h), h the diagonal of the norm's matrix.
Methods return the iterates x^1 .. x^T, the mean of x^1 .. x^k for every k, and their step state.
"""

import numpy as np

_HALVINGS = 200


def root(function, low, high):
    """Return where a decreasing function crosses zero, by bisection."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return high


# Ellipsoids.


def half_axes(moments, exponent, radius=1.0):
    """Theorems 1 and 2: A = C / B^2, so s_j = B C_jj^(-1/2).

    C_jj = sigma_j^(-4/3), exponent 2/3, for PAGAN (Section 3.2, Theorem 3); C_jj = 1 / sigma_j,
    exponent 1/2, for PASAN.
    """
    return radius * moments**exponent


def theorem1_radius(c, lipschitz, p, diameter_c, diameter_2, n, epsilon, delta):
    """Theorem 1: B for PASAN; `lipschitz` is G_2p(C), `diameter_c` that of X in the C^-1 norm."""
    cost = diameter_2 * np.sqrt(np.sum(1 / c)) * np.sqrt(np.log(1 / delta))
    return 2 * lipschitz * (diameter_c * n * epsilon / cost) ** (1 / p)


def theorem2_radius(c, lipschitz, p, diameter_c, diameter_inf, n, epsilon, delta):
    """Theorem 2: B for PAGAN."""
    cost = diameter_inf * np.sqrt(np.log(1 / delta)) * np.sum(1 / np.sqrt(c))
    return 2 * lipschitz * (diameter_c * n * epsilon / cost) ** (1 / p)


def radial(x, axes):
    """Rescale x to the ellipsoid: clip the whitened vector to norm 1."""
    norm = np.sqrt(np.sum((x / axes) ** 2))
    return x if norm <= 1 else x / norm


def euclidean(x, axes):
    """Section 2: pi_A(x) = argmin |y - x|_2 in the ellipsoid; y_j = x_j / (1 + lambda / s_j^2)."""
    if np.sum((x / axes) ** 2) <= 1:
        return x

    def excess(multiplier):
        return np.sum((x * axes / (axes**2 + multiplier)) ** 2) - 1

    multiplier = root(excess, 0.0, np.sqrt(np.sum((x * axes) ** 2)))
    return x / (1 + multiplier / axes**2)


def printed_multiplier(epsilon, delta):
    """Algorithms 1 and 2, line 6: the noise on the sum of whitened gradients of norm 1."""
    return np.sqrt(np.log(1 / delta)) / epsilon


def ellipsoid_gradient(rows, normals, axes, projection, noise_multiplier, batch_size):
    """Algorithms 1 and 2, lines 5 and 6: (1/b) sum pi_A(g_i) + (sigma / b) xi, xi ~ N(0, A^-1)."""

    def gradient(theta, t):
        total = np.zeros_like(theta)
        for row in rows(theta, t):
            total = total + projection(row, axes)
        return (total + noise_multiplier * axes * normals[t - 1]) / batch_size

    return gradient


# Projections on the feasible set: argmin_y sum_j h_j (y_j - x_j)^2.


def box(low=-1.0, high=1.0):
    """On {low <= y_j <= high}: the problem separates, so h does not matter."""
    return lambda x, h: np.minimum(np.maximum(x, low), high)


def ball(radius=1.0):
    """On {|y|_2 <= radius}: y_j = h_j x_j / (h_j + mu), by bisection on mu >= 0."""

    def project(x, h):
        if np.sum(x**2) <= radius**2:
            return x
        most = np.sqrt(np.sum((h * x) ** 2)) / radius
        mu = root(lambda mu: np.sum((h * x / (h + mu)) ** 2) - radius**2, 0.0, most)
        return h * x / (h + mu)

    return project


def simplex(total=1.0):
    """On {y_j >= 0, sum_j y_j = total}: y_j = max(0, x_j - nu / h_j), by bisection on nu."""

    def project(x, h):
        def excess(nu):
            return np.sum(np.maximum(0, x - nu / h)) - total

        nu = root(excess, np.min(h * (x - total)), np.max(h * x))
        return np.maximum(0, x - nu / h)

    return project


def everywhere(x, h):
    """No constraint."""
    return x


# The methods.


def averages(path):
    """Line 10: (1/k) sum of x^1 .. x^k; x^0 is not in it."""
    return [np.mean(path[:k], axis=0) for k in range(1, len(path) + 1)]


def pasan(x, gradient, steps, lr, project=everywhere):
    """Algorithm 1, lines 7 to 10; also returns the step sizes alpha_k."""
    squares, path, rates = 0.0, [], []
    for t in range(1, steps + 1):
        g = gradient(x, t)
        squares = squares + np.sum(g**2)
        rate = lr / np.sqrt(squares)
        x = project(x - rate * g, np.ones_like(x))
        path.append(x)
        rates.append(rate)
    return path, averages(path), rates


def pagan(x, gradient, steps, lr, project=everywhere):
    """Algorithm 2, lines 7 to 10; also returns the diagonals of H_k."""
    squares, path, diagonals = np.zeros_like(x), [], []
    for t in range(1, steps + 1):
        g = gradient(x, t)
        squares = squares + g**2
        h = np.sqrt(squares) / lr
        x = project(x - g / h, h)
        path.append(x)
        diagonals.append(h)
    return path, averages(path), diagonals


def isotropic_gradient(rows, normals, noise_multiplier, batch_size, d):
    """Section 6.1: A_k = I, the unit ball, where the two projections agree.

    PASAN and PAGAN on it are the section's private SGD and private AdaGrad.
    """
    return ellipsoid_gradient(rows, normals, np.ones(d), radial, noise_multiplier, batch_size)


def pdp_sgd(x, gradient, public_rows, steps, lr, k):
    """Zhou et al. in Section 6: SGD on the release projected on the top k eigenvectors of M.

    M = (1/m) sum g g^T over public gradients, the rows of `public_rows(x, t)`.
    """
    path = []
    for t in range(1, steps + 1):
        publics = public_rows(x, t)
        _, vectors = np.linalg.eigh(publics.T @ publics / len(publics))
        top = vectors[:, -k:]  # eigh sorts eigenvalues upwards
        x = x - lr * top @ (top.T @ gradient(x, t))
        path.append(x)
    return path


# Private second moments.


def moment_iterations(d):
    """Theorem 3: T = (3/2) log d, to the base 2, so that 2^-T <= d^(-3/2)."""
    return int(np.ceil(1.5 * np.log2(d)))


def second_moments(z, normals, ratio, epsilon, delta):
    """Algorithm 3: sigma^_j within a factor 2, halving the guess until a coordinate is reached.

    `normals` has a row for each of the T iterations; coordinates already done ignore theirs.
    Returns sigma^ and the standard deviation of the noise at each iteration.
    """
    (n, d), iterations = z.shape, len(normals)
    guess, left = 1.0, set(range(d))  # line 1
    sigma, deviations = np.full(d, 2.0**-iterations), []  # lines 13 to 15
    for t in range(1, iterations + 1):
        rho = 4 * ratio * guess * np.log(ratio)  # line 4
        noise = rho**2 * iterations * np.sqrt(d * np.log(iterations / delta)) / (n * epsilon)
        for j in sorted(left):
            clipped = np.mean(np.minimum(z[:, j] ** 2, rho**2))
            squared = clipped + noise * normals[t - 1][j]  # line 5
            if squared >= 0 and np.sqrt(squared) >= 2.0 ** (-t - 1):  # line 6
                sigma[j] = 2.0**-t
                left.remove(j)
        guess = guess / 2  # line 11
        deviations.append(noise)
    return sigma, deviations
