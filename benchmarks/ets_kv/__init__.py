"""KV that ETS holds relative to REBASE at equal accuracy, by node and by distinct token path; and the least possible.

KV is counted in tokens, summed over the rounds of a search: all paths that are written at a time. By node, every sample
counts, as in ETS's paper; by distinct token path, equal prefixes count once, as in a prefix cache.
"""
