"""Rung: whether bytes move, intact and at the expected rate, through each port of this machine."""
