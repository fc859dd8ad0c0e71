"""003: Adaptive Differentially Private Empirical Risk Minimization."""
