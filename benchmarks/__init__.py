"""Measurements of Banyan's claims: both sides in one run, as a ratio, with several repeats."""
