"""What is shown: pages, plots, terminal text."""
