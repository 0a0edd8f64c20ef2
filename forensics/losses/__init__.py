"""Losses per segment: recorded, scored, or a code length in their place."""
