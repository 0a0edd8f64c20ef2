"""Curves: metrics, events, verdicts."""
