"""The inventory rung."""
