"""Contrastive losses, nested over prefixes, and the objective put together from them."""
