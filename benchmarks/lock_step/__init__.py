"""Banyan served, beside the beam search that people run today: levels in lock step, engines in the same process."""
