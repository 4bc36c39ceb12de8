"""Readers of facts."""
