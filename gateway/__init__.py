"""A fencing gateway for Postgres tables and S3 objects."""
