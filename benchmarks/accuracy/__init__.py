"""How often each search is right, and how often it could have been: accuracy and pool at one budget after another.

The *pool* is the share of problems for which some path that might have answered has the right answer: what a perfect
vote would reach.
"""
