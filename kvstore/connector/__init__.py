"""The engines' side of LMCache: lookups, stores, transfers, paths about to be evicted."""
