"""Measure: judgements, metrics, significance, operating points, one page of results."""
