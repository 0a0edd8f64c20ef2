"""Compositions of stages, one page per question a user asks."""
