"""What Banyan claims, measured: both sides in one run, a ratio, several repeats."""
