"""Which index config and operating point to run: goals, candidates, confidence bounds, costs."""
