// Package integration tests the client against a real gateway, which tests/clients/test_go.py starts.
package integration
