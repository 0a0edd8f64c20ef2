"""From what was consumed to the documents it came from."""
