"""The loopback rung."""
