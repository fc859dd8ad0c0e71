"""Training: settings, the step, the trainer and the loop adapter."""
