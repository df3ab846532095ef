"""Commands that measure: bench, plan and evaluate."""
