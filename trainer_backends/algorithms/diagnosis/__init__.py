"""Diagnosis: metrics in, a verdict with its evidence out."""
