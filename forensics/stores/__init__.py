"""Tokens and text on disk."""
