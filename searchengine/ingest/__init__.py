"""Documents to passages to vectors to commits; and a collection kept equal to a folder."""
