"""For trying out: everything embedded, with sample data and a story. Nothing of it serves in production."""
