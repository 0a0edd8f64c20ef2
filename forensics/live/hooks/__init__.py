"""A few lines each around the recorder, per trainer."""
