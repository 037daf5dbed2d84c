"""Evaluation: plans, resumable runs, metrics with intervals, and reports. Nothing is imported here."""
