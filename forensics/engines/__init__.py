"""Launchers of tasks over shard files."""
