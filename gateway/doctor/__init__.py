"""``gateway doctor``: what is wrong with an installation, and what follows from it."""
