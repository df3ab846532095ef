"""The encoder: what is required of it, how it is loaded, and checks of what it returns."""
