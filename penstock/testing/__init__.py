"""Fakes that ship to users: each one passes the contract tests of the real thing."""
