"""Measure: judgements, comparisons, operating points, one page of results."""
