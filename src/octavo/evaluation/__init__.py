"""Measuring what a recipe costs: KLD, equivalence, retrieval, ladders, and reports that can say "invalid"."""
