"""The addresses of the API, and what answers at each."""
