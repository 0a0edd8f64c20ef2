"""Skip lists in each trainer's own terms."""
