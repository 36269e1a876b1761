"""The engines' side of LMCache: lookups, stores, transfers, what is about to be evicted."""
