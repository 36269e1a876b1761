"""How much less KV ETS holds than REBASE at equal accuracy, by node and by distinct token path; and why not less.

KV is counted in tokens, summed over the rounds of a search: all paths that are written at a time. By node every sample
has its own, as in ETS's paper; by distinct token path equal prefixes are held once, as a prefix cache holds them.
"""
