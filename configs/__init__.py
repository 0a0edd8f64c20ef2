"""Presets: the numbers behind detectors, curves and attribution, and example run descriptions."""
