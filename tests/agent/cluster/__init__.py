"""Calls to a real API server."""
