"""Accuracy and pool of each search at several token budgets.

The *pool* is the share of problems for which at least one path that may answer has the right answer: the accuracy of a
perfect vote.
"""
