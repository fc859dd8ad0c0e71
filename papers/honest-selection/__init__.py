"""001: The Role of Adaptive Optimizers for Honest Private Hyperparameter Selection."""
