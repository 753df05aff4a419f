"""Parts of HTTP that all planes share: the frozen head of a request, and the one reader of bodies."""
