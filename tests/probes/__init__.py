"""Probes and their readers."""
