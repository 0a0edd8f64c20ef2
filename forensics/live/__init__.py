"""Inside and beside a running training."""
