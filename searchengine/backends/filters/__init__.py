"""The filter language, compiled to SQL."""
