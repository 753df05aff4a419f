"""Stand-ins for the services around the gateway, with switches for faults."""
