"""Evaluation of strategies on files of problems: loop, statistics and reports."""
