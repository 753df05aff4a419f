"""Stories of locks and zombies, played by real processes against ``gateway demo``: code to be copied."""
