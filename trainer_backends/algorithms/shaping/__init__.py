"""Advantage shaping, after credit and before the loss: rows and advantages in, advantages out."""
