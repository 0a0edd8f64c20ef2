"""Metric sources: one file per log format."""
