"""Training in this process with torch: generation, update, checkpoints."""
