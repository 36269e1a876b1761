"""Strategies measured on files of problems: the loop, the statistics and the reports."""
