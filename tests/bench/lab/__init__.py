"""Small real trainings with a known cause, made from seeds: see `cases.py`."""
