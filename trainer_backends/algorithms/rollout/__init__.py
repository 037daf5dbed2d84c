"""Rollouts: which turns of a task to sample, as chains or as a tree."""
