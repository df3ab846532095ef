"""A checked question to a ranking to hits."""
