"""Guards: triggers that have sessions which write tables without the gateway hold fencing tokens too."""
