"""Rung: what the machine has, and whether everyone who counts it agrees."""
