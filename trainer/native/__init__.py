"""The kernel that runs networks of BERT's kind in 8 bits, and the weights that it reads."""
