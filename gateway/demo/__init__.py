"""``gateway demo``: an embedded PostgreSQL and S3, and the story of a paused writer with real processes.

The embedded servers are for trying out, and prove nothing about a store. Only ``cli`` imports this.
"""
