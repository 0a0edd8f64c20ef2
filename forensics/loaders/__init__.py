"""Data order per trainer: from a step to the documents it read."""
