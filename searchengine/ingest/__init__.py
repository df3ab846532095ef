"""Documents to passages to vectors to one commit."""
