"""The algorithms by which issuers may sign identity tokens (RFC 7518, 8037)."""

SYMMETRIC = ("HS256", "HS384", "HS512")
"""The issuer and the gateway share a secret."""
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
