"""What a collection of a given size will need: measured at three sizes, and extrapolated."""
