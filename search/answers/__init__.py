"""Answers: extraction from a path's text, grouping by equivalence, voting. Independent of strategies."""
