"""Encoders: their protocol, loading, and checks of the vectors they return."""
