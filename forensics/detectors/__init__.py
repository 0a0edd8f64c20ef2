"""What is wrong with a document: measures, and findings over their thresholds."""
