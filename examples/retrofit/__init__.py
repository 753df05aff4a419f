"""An old service that is fenced step by step, as docs/guides/retrofit.md tells."""
