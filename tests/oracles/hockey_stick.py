"""Hockey-stick divergences of sampled Gaussians from their definition, in mpmath.

delta(e) = sup over events S of P(S) - e^e Q(S), which is attained where the loss log(p / q)
exceeds e. Removing a record compares P = (1-q) N(0, s^2) + q N(1, s^2) with Q = N(0, s^2);
adding one compares Q with P.
"""

import mpmath as mp

_DIGITS = 50

REMOVING, ADDING = 0, 1


def delta(epsilon: float, rate: float, sigma: float, direction: int) -> mp.mpf:
    """Return the hockey-stick divergence of one release at any real epsilon."""
    with mp.workdps(_DIGITS):
        q, s, growth = mp.mpf(rate), mp.mpf(sigma), mp.exp(epsilon)
        ratio = growth if direction == REMOVING else 1 / growth
        if ratio <= 1 - q:
            return 1 - growth if direction == REMOVING else mp.mpf(0)
        # where the ratio of the densities is `ratio`; it grows with x
        x = s**2 * mp.log((ratio - 1 + q) / q) + mp.mpf(1) / 2
        if direction == REMOVING:
            with_record = (1 - q) * _above(x / s) + q * _above((x - 1) / s)
            return with_record - growth * _above(x / s)
        with_record = (1 - q) * _above(-x / s) + q * _above((1 - x) / s)
        return _above(-x / s) - growth * with_record


def delta_of_two(
    epsilon: float, first: tuple[float, float], second: tuple[float, float], direction: int
) -> mp.mpf:
    """Return the divergence of two releases: the second one's, averaged over the first's loss."""
    rate, sigma = first
    with mp.workdps(30):
        q, s = mp.mpf(rate), mp.mpf(sigma)

        def density(x: mp.mpf, mean: int) -> mp.mpf:
            return mp.exp(-(((x - mean) / s) ** 2) / 2) / (s * mp.sqrt(2 * mp.pi))

        def integrand(x: mp.mpf) -> mp.mpf:
            without = density(x, 0)
            with_record = (1 - q) * without + q * density(x, 1)
            p, other = (with_record, without) if direction == REMOVING else (without, with_record)
            return p * delta(epsilon - mp.log(p / other), *second, direction)

        # beyond the first loss at which the second release cannot reach epsilon, it adds nothing
        edge = (
            epsilon - mp.log1p(-second[0])
            if direction == REMOVING
            else -epsilon - mp.log1p(-second[0])
        )
        breaks = [k * 2 * s for k in range(-6, 8 + int(1 / s))]
        ratio = (mp.exp(edge) - 1 + q) / q
        if ratio > 0:
            breaks = sorted([*breaks, s**2 * mp.log(ratio) + mp.mpf(1) / 2])
        return mp.quad(integrand, breaks)


def gaussian_epsilon(sigma: float, target: float) -> mp.mpf:
    """Return the least epsilon >= 0 at which the unsampled Gaussian's divergence is `target`."""
    return epsilon_at(lambda e: delta(e, 1.0, sigma, REMOVING), target)


def epsilon_at(curve, target: float) -> mp.mpf:
    """Return where a decreasing curve meets `target`, by bisection; 0 if it starts below."""
    with mp.workdps(_DIGITS):
        low, high = mp.mpf(0), mp.mpf(1)
        if curve(low) <= target:
            return low
        while curve(high) > target:
            low, high = high, 2 * high
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if curve(middle) > target else (low, middle)
        return high


def _above(x: mp.mpf) -> mp.mpf:
    """Return the upper tail of the standard normal distribution."""
    return mp.erfc(x / mp.sqrt(2)) / 2
