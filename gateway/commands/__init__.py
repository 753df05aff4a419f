"""The commands of the program ``gateway``, apart from serving: one module a command, and what they share."""
