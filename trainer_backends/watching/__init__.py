"""Watching training: live progress, event files, reports of one run, comparisons of several."""
