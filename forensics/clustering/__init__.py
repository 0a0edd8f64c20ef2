"""Groups of documents: by label, by content, by likeness."""
