"""Policy losses: log-probabilities and advantages in, a loss for every token out."""
