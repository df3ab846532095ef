"""Operating points measured on one's own vectors, and a report of what they cost and find."""
