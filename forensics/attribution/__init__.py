"""What explains an event: statistics, verdict, what to skip."""
