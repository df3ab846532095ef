"""Contrastive losses, nested over prefixes; the masked-language-model loss beside them."""
