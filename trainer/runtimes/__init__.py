"""Runtimes: the native kernel and torch; numpy for static models."""
