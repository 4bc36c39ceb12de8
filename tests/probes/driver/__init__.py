"""The driver rung."""
